"""The cost model of the native job as tests ask it: model-stages on devices of one peak, and a truth to learn."""

from __future__ import annotations

from dataclasses import replace

from nereus.cost.efficiency import Efficiencies, Efficiency
from nereus.cost.native import UNSEEN_NATIVE, native_cost
from nereus.cost.operations import CALL_S, FORWARD_CALLS, OpClass
from nereus.cost.step import CostModel
from nereus.emu.plan import StagePlan
from nereus.spec.model import ModelShape
from tests.builders import degrees, make_layout

QUICKSTART = ModelShape(hidden_size=96, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=24, ffn_size=256, vocab_size=64)
"""The model of examples/quickstart.yaml."""
PEAK = 4.5e9
"""0.15 of a core of 30 GFLOP/s."""
COST = native_cost(QUICKSTART, "float32", PEAK, 24 << 20, 8)

COMPUTES = (OpClass.GEMM, OpClass.ATTENTION)
LAUNCHES = (OpClass.DISPATCH, OpClass.DECODE_DISPATCH)
CALL = FORWARD_CALLS * CALL_S
"""Nominal seconds of one call: the forward of one layer."""


def stage_plan(stage: str, text: str = "tp1", micro_batch: int = 32, first: int = 0) -> StagePlan:
    """A model-stage on "tp2 dp2" and the like."""
    layout, dp = make_layout(text), degrees(text)["dp"]
    return StagePlan(stage, layout, dp, tuple(range(first, first + layout.size * dp)), micro_batch)


def with_rates(floor_s: float, efficiency: float, **message: float) -> CostModel:
    """A machine with this floor of a call and this efficiency of a FLOP; messages by class, else as declared."""
    values = dict(UNSEEN_NATIVE)
    values |= dict.fromkeys(COMPUTES, Efficiency(efficiency, 1.0))
    values |= dict.fromkeys(LAUNCHES, Efficiency(CALL / floor_s, 1.0))
    values |= {OpClass(name): Efficiency(value, 1.0) for name, value in message.items()}
    return replace(COST, prior=Efficiencies("truth", values))


def floor_s(cost: CostModel, role: str) -> float:
    """The learnt seconds of a call."""
    op = OpClass.DECODE_DISPATCH if role == "generation" else OpClass.DISPATCH
    return CALL / cost.learnt[role].values[op].value


def efficiency(cost: CostModel, role: str) -> float:
    """The learnt efficiency of a matrix product."""
    return cost.learnt[role].values[OpClass.GEMM].value
