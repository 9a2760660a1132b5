"""The latency of a whole step: model-stages one after the other, and the weight sync."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nereus.cost.batch import Batch
from nereus.cost.rates import BANDWIDTH_BYTES_S, ClassRate, Rates, message_seconds, reduce_latency_s
from nereus.cost.step import CostModel
from nereus.cost.work import OpClass, stage_work
from nereus.emu.plan import Plan, StagePlan
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES
from tests.builders import degrees, make_layout

MODEL = ModelShape(hidden_size=96, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=24, ffn_size=256, vocab_size=64)
CLASSES = {
    OpClass.DECODE: ClassRate(1e-3, 0.1, 1),
    OpClass.FORWARD: ClassRate(2e-3, 0.2, 1),
    OpClass.TRAIN: ClassRate(4e-3, 0.4, 1),
}
COST = CostModel(MODEL, "float32", Rates(4.5e9, CLASSES))
BATCH = Batch(256, 6, 12)
STAGE_CLASSES = (
    (ACTOR_GENERATION, OpClass.DECODE),
    (REFERENCE_INFERENCE, OpClass.FORWARD),
    (ACTOR_TRAINING, OpClass.TRAIN),
)


def plan_of(stage: str, text: str, first: int = 0) -> StagePlan:
    layout, dp = make_layout(text), degrees(text)["dp"]
    return StagePlan(stage, layout, dp, tuple(range(first, first + layout.size * dp)), 32)


@pytest.mark.parametrize(("stage", "kind"), STAGE_CLASSES)
def test_stage_takes_its_calls_flops_and_messages_at_the_rates_of_its_class(stage: str, kind: OpClass) -> None:
    plan = plan_of(stage, "tp2 dp2")
    work, rate = stage_work(plan, MODEL, "float32", BATCH), CLASSES[kind]
    expected = rate.floor_s * work.calls + work.flops / 4.5e9 / rate.efficiency + message_seconds(work, 2, 2)
    assert COST.stage_seconds(plan, BATCH) == pytest.approx(expected)


def test_step_is_the_sum_of_its_stages_and_the_weight_sync() -> None:
    stages = (plan_of(ACTOR_GENERATION, "dp4"), plan_of(REFERENCE_INFERENCE, "tp2", 4), plan_of(ACTOR_TRAINING, "pp2 dp2"))
    plan = Plan(0, {stage.stage: stage for stage in stages})
    expected = sum(COST.stage_seconds(stage, BATCH) for stage in stages) + COST.sync_seconds(4)
    assert COST.step_seconds(plan, BATCH, ACTOR_GENERATION) == pytest.approx(expected)


def test_step_does_not_depend_on_which_devices_a_stage_has() -> None:
    here, there = (Plan(0, {ACTOR_GENERATION: plan_of(ACTOR_GENERATION, "dp4", first)}) for first in (0, 4))
    assert COST.step_seconds(here, BATCH, ACTOR_GENERATION) == COST.step_seconds(there, BATCH, ACTOR_GENERATION)


def test_weight_sync_sends_all_parameters_to_every_replica() -> None:
    """After one latency each replica takes the same; over a link with what was measured at most, or with half of it."""
    seconds = [COST.sync_seconds(replicas) - reduce_latency_s(2) for replicas in (1, 2, 4, 8)]
    assert [s / seconds[0] for s in seconds] == pytest.approx([1, 2, 4, 8])
    size = 4 * (MODEL.num_parameters - 96)
    assert 0.499 * size / BANDWIDTH_BYTES_S <= seconds[0] <= size / BANDWIDTH_BYTES_S


def test_weight_sync_of_half_precision_takes_half_of_the_bytes() -> None:
    half = CostModel(MODEL, "bfloat16", COST.rates)
    latency = reduce_latency_s(2)
    assert half.sync_seconds(2) - latency == pytest.approx((COST.sync_seconds(2) - latency) / 2)


def test_longer_responses_make_a_slower_step() -> None:
    plan = Plan(0, {stage: plan_of(stage, "dp4") for stage in STAGES})
    seconds = [COST.step_seconds(plan, Batch(256, 6, tokens), ACTOR_GENERATION) for tokens in (4, 6, 12, 20)]
    assert all(a < b for a, b in pairwise(seconds))
