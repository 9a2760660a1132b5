"""Efficiencies that ship, per accelerator kind: only what was fitted on a public measurement, with source and error.

A kind that is not here starts from conservative guesses (`UNSEEN`). Figures fitted on one cluster do not carry to another,
so each figure ships with a spread of at least `CARRIED`, those of a network with that of an unseen class. What belongs to a
software regime (stalls, pipelined launches) is never shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from nereus.cost.accelerator import AcceleratorModel, Key, Learnt
from nereus.cost.efficiency import UNSEEN, Efficiencies, Efficiency
from nereus.cost.operations import OpClass

CARRIED = 0.25
"""Least spread of a shipped figure: what the same class differed by between the public clusters it was fitted on."""


NETWORK = frozenset(
    (OpClass.TP_NETWORK, OpClass.SEND_NETWORK, OpClass.REDUCE_NETWORK, OpClass.SCATTER_NETWORK) + (OpClass.EXPERTS_NETWORK,)
)
"""Classes that depend on a cluster more than on its devices."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Figures of one fit."""

    source: str
    error: str
    """Of its predictions, and on what."""
    values: Mapping[OpClass, float]


PRIORS: Mapping[str, tuple[Prior, ...]] = {
    "H100": (
        Prior(
            source="Ultra-Scale Playbook sweep (nanotron, 1B/3B/8B, 8 to 64 H100, EFA)",
            error="median 3.4 % within 2x of the best, each model left out of its own fit",
            values={
                OpClass.GEMM: 0.61,
                OpClass.GEMM_BYTES: 0.39,
                OpClass.ATTENTION: 0.23,
                OpClass.ELEMENTWISE: 0.95,
                OpClass.DISPATCH: 0.105,
                OpClass.OPTIMIZER: 0.59,
                OpClass.STEP: 0.17,
                OpClass.REDUCE_NETWORK: 0.41,
                OpClass.SCATTER_NETWORK: 0.38,
            },
        ),
        Prior(
            source="Vidur network profiling, H100 DGX, all-reduce of 2 to 8 devices",
            error="median 16 %, every other size left out",
            values={OpClass.TP_NODE: 0.70, OpClass.TP_LATENCY_NODE: 0.67, OpClass.REDUCE_NODE: 0.70},
        ),
        Prior(
            source="TensorRT-LLM performance overview, Llama 3.1 8B to 405B in FP8, TP 1 to 8, full load",
            error="median 3.6 % in the fit",
            values={OpClass.WEIGHTS: 0.75, OpClass.KV_READ: 0.95, OpClass.DECODE_DISPATCH: 0.43, OpClass.SEQUENCE: 1.0},
        ),
    ),
    "A100-80GB": (
        Prior(
            source="Vidur network profiling, A100 DGX, all-reduce of 2 to 8 devices",
            error="median 16 %, every other size left out",
            values={OpClass.TP_NODE: 0.49, OpClass.TP_LATENCY_NODE: 0.47, OpClass.REDUCE_NODE: 0.49},
        ),
        Prior(
            source="Splitwise, Llama-2-70B with TP 2 to 8 and BLOOM-176B with TP 8 in vLLM",
            error="mean 11 %, each model and TP left out of its own fit",
            values={OpClass.WEIGHTS: 0.65, OpClass.KV_READ: 0.61, OpClass.DECODE_DISPATCH: 0.27},
        ),
    ),
    "L40S": (
        Prior(
            source="TensorRT-LLM performance overview, Llama 3.1 8B and 70B in FP8, TP 1 to 8, full load",
            error="median 1.5 % in the fit",
            values={OpClass.WEIGHTS: 0.83, OpClass.KV_READ: 0.88, OpClass.TP_NODE: 0.55, OpClass.GEMM: 0.76},
        ),
    ),
}
"""By accelerator name. `python -m benchmarks.cost_model` reports the errors; it never starts from these figures."""


@cache
def shipped(kind: str) -> Efficiencies:
    """What is known of a kind before anything ran on it here."""
    values, sources = dict(UNSEEN), []
    for prior in PRIORS.get(kind, ()):
        sources.append(f"{prior.source}: {prior.error}")
        for op, value in prior.values.items():
            spread = UNSEEN[op].spread
            values[op] = Efficiency(value, spread if op in NETWORK else min(CARRIED, spread))
    if not sources:
        return Efficiencies(kind)
    return Efficiencies(kind, values, 0, "; ".join(sources))


def known_of(learnt: Learnt, key: Key) -> AcceleratorModel:
    """What was learnt of a kind in a role, or what ships with the kind."""
    return learnt.get(key) or AcceleratorModel(shipped(key[0]))
