"""The logical states that are moved between processes: every rule of sharding that real models need, in small."""

from __future__ import annotations

from dataclasses import replace

from nereus.emu.unit import counter_tensors
from nereus.layout.catalog import StateSpec
from nereus.layout.dense import EMBED, dense_parameters, layer_name, trained
from nereus.layout.tensors import CanonicalTensor, Kind, Place
from tests.builders import fused_state, make_model

RNG = CanonicalTensor("rng", Kind.SCALAR, (7,), "int64", Place.EVERYWHERE)
"""A random stream, which is logical state: every rank has the same one."""


def tied_state() -> StateSpec:
    """4,999 tokens, tied; 2 kv heads; Adam in float32."""
    model = make_model(num_layers=6, vocab=4999, tied=True)
    return _with_counters(trained(dense_parameters(model, "float32")), model.num_layers)


def untied_state() -> StateSpec:
    """4,999 tokens, untied; 3 kv heads; 7 layers, which no pipeline cuts evenly; Adam in float64."""
    model = make_model(num_layers=7, num_heads=6, num_kv_heads=3, vocab=4999, tied=False)
    return _with_counters(trained(dense_parameters(model, "float64")), model.num_layers)


def fused_trained_state() -> StateSpec:
    """Fused q/k/v of 8 heads over 2 kv heads, and fused gate/up, with moments."""
    state = fused_state()
    parameters = tuple(tensor for tensor in state.tensors if tensor.kind is Kind.PARAMETER)
    return _with_counters(trained(parameters), state.num_layers)


MIXED = make_model(num_layers=6, num_heads=6, num_kv_heads=3, vocab=51, tied=True)


def mixed_state(*, dtype: str = "bfloat16", frozen_embedding: bool = False) -> StateSpec:
    """Parameters in bfloat16 with master copies and moments in float32; 51 tokens, tied; 3 kv heads."""
    parameters = _mixed_parameters(dtype, frozen_embedding)
    learned = [parameter for parameter in parameters if not parameter.frozen]
    optimizer = (p.as_kind(kind, "float32") for kind in (Kind.MASTER, Kind.EXP_AVG, Kind.EXP_AVG_SQ) for p in learned)
    return _with_counters((*parameters, *optimizer), MIXED.num_layers)


def served_state(*, frozen_embedding: bool = False) -> StateSpec:
    """What generates with the mixed model: its parameters in bfloat16, without any optimizer state."""
    return _with_counters(_mixed_parameters("bfloat16", frozen_embedding), MIXED.num_layers)


def _mixed_parameters(dtype: str, frozen_embedding: bool) -> tuple[CanonicalTensor, ...]:
    parameters = dense_parameters(MIXED, dtype)
    return tuple(replace(p, frozen=frozen_embedding and p.name == EMBED) for p in parameters)


def small_state() -> StateSpec:
    """One tensor in each of 6 layers, another rule in each, with moments: small, for what is repeated often."""
    model = make_model(tied=True)
    rules = ("self_attn.k_proj", "self_attn.q_proj", "self_attn.o_proj", "input_layernorm", "mlp.gate_proj", "mlp.down_proj")
    kept = {layer_name(layer, rule) for layer, rule in enumerate(rules)}
    parameters = tuple(t for t in dense_parameters(model, "float32") if t.layer is None or t.name in kept)
    return _with_counters(trained(parameters), model.num_layers)


STATES = {
    "tied": tied_state,
    "untied": untied_state,
    "fused": fused_trained_state,
    "mixed": mixed_state,
}


def _with_counters(tensors: tuple[CanonicalTensor, ...], num_layers: int) -> StateSpec:
    return StateSpec((*tensors, RNG, *counter_tensors()), num_layers)
