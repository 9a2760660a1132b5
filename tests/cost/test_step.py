"""The latency of a whole step: model-stages one after the other, and the weight sync."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from nereus.cost.batch import Batch
from nereus.cost.efficiency import Efficiencies
from nereus.cost.layer import Architecture
from nereus.cost.native import native_cost
from nereus.cost.priors import shipped
from nereus.cost.step import CostModel, Measurement
from nereus.emu.plan import Plan
from nereus.spec.hardware import ACCELERATORS, CPU_BYTES_S, Hardware
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES
from tests.cost.accelerators import LLAMA_8B
from tests.cost.native import COST, PEAK, QUICKSTART, stage_plan

BATCH = Batch(256, 6, 12)
PAIR_S = 7e-4
"""Seconds of a small all-reduce between two processes."""


def on_h100s(model: Architecture = LLAMA_8B) -> CostModel:
    """The same questions, asked of accelerators."""
    return CostModel(model=model, hardware=Hardware(ACCELERATORS["H100"]), dtype="bfloat16", prior=shipped("H100"))


@pytest.mark.parametrize("cost", [COST, on_h100s()], ids=["native", "H100"])
def test_step_is_the_sum_of_its_stages_and_the_weight_sync(cost: CostModel) -> None:
    stages = (
        stage_plan(ACTOR_GENERATION, "dp4"),
        stage_plan(REFERENCE_INFERENCE, "tp2", first=4),
        stage_plan(ACTOR_TRAINING, "pp2 dp2"),
    )
    plan = Plan(0, {stage.stage: stage for stage in stages})
    expected = sum(cost.stage_seconds(stage, BATCH) for stage in stages) + cost.sync_seconds(4)
    assert cost.step_seconds(plan, BATCH, ACTOR_GENERATION) == pytest.approx(expected)


def test_each_role_takes_the_efficiencies_that_were_learnt_for_it() -> None:
    slow = Efficiencies("slow", {op: known._replace(value=known.value / 2) for op, known in COST.prior.values.items()})
    cost = replace(COST, learnt={"inference": slow})
    for stage in STAGES:
        factor = 2 if stage == REFERENCE_INFERENCE else 1
        plan = stage_plan(stage, "tp2 dp2")
        assert cost.stage_seconds(plan, BATCH) == pytest.approx(factor * COST.stage_seconds(plan, BATCH))


def test_step_does_not_depend_on_which_devices_a_stage_has() -> None:
    here, there = (Plan(0, {ACTOR_GENERATION: stage_plan(ACTOR_GENERATION, "dp4", first=first)}) for first in (0, 4))
    assert COST.step_seconds(here, BATCH, ACTOR_GENERATION) == COST.step_seconds(there, BATCH, ACTOR_GENERATION)


def test_weight_sync_sends_all_parameters_to_every_replica() -> None:
    """After one latency each replica takes the same: they share one machine."""
    seconds = [COST.sync_seconds(replicas) - PAIR_S for replicas in (1, 2, 4, 8)]
    assert [s / seconds[0] for s in seconds] == pytest.approx([1, 2, 4, 8])
    size = 4 * (QUICKSTART.num_parameters - 96)
    assert seconds[0] == pytest.approx(size / CPU_BYTES_S)


def test_weight_sync_of_accelerators_fills_all_links_at_once() -> None:
    cost = on_h100s()
    assert cost.sync_seconds(4) == pytest.approx(cost.sync_seconds(1))
    assert cost.sync_seconds(4) == pytest.approx(2 * 8.03e9 / 450e9, rel=0.01)
    assert cost.sync_seconds(32) > 5 * cost.sync_seconds(4), "beyond a node"


def test_weight_sync_of_half_precision_takes_half_of_the_bytes() -> None:
    half = native_cost(QUICKSTART, "bfloat16", PEAK, 24 << 20, 8)
    assert half.sync_seconds(2) - PAIR_S == pytest.approx((COST.sync_seconds(2) - PAIR_S) / 2)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("cost", [COST, on_h100s()], ids=["native", "H100"])
def test_a_stage_that_was_measured_is_met_whatever_the_devices_are(cost: CostModel, stage: str) -> None:
    plan, batch = stage_plan(stage, "tp2 dp2"), Batch(256, 512, 1024)
    seconds = 1.3 * cost.stage_seconds(plan, batch)
    learnt = cost.learn([Measurement(plan, batch, seconds)] * 8)
    assert learnt.stage_seconds(plan, batch) == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize("cost", [COST, on_h100s()], ids=["native", "H100"])
def test_longer_responses_make_a_slower_step(cost: CostModel) -> None:
    plan = Plan(0, {stage: stage_plan(stage, "dp4") for stage in STAGES})
    seconds = [cost.step_seconds(plan, Batch(256, 6, tokens), ACTOR_GENERATION) for tokens in (4, 6, 12, 20)]
    assert all(a < b for a, b in pairwise(seconds))
