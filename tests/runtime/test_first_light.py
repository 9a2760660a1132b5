"""First light without Ray: the trace and the curriculum of examples/quickstart.yaml walk through planner and policy.

The stages take what a hidden machine says, another one for every seed; the core sees its reports and nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from nereus.control.effects import Decision, Started, TransitionRecord
from nereus.control.phases import Stopped
from nereus.control.report import StepReport
from nereus.cost.batch import Batch
from nereus.cost.native import native_cost
from nereus.emu.plan import Plan
from nereus.policy.admission import Code
from nereus.runtime.summary import SampleCounts, summarize
from tests.runtime.loop import Loop, Truth, job_of, quickstart
from tests.runtime.world import World

SEEDS = range(5)
"""Hidden machines: speeds and floors within a quarter of what the quickstart measured, noise of 3 %."""


@lru_cache
def walk(seed: int, plan_boundaries: int = 0) -> Loop:
    """The whole quickstart on one hidden machine; its journal is read by nobody."""
    config, pool = quickstart()
    world = World(config, order=Random(seed), plan_boundaries=plan_boundaries, holds_values=False)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(world, Path(folder) / "journal.sqlite", pool=pool, truth=Truth(job_of(config), seed))
        loop.run(job_of(config).steps)
        loop.close()
    return loop


def records(loop: Loop) -> list[TransitionRecord]:
    return [news for news in loop.news if isinstance(news, TransitionRecord)]


def decisions(loop: Loop) -> list[Decision]:
    return [news for news in loop.news if isinstance(news, Decision)]


def steps(loop: Loop) -> Iterator[tuple[int, Plan]]:
    """Each step, and the plan that it ran on."""
    plan: Plan | None = None
    for news in loop.news:
        if isinstance(news, Started | TransitionRecord):
            plan = news.plan
        elif isinstance(news, StepReport):
            assert plan is not None
            yield news.step, plan


each_seed = pytest.mark.parametrize("seed", SEEDS)


@each_seed
def test_run_comes_to_its_end(seed: int) -> None:
    loop = walk(seed)
    assert loop.world.stopped is None
    assert not isinstance(loop.state.phase, Stopped)
    assert [step for step, _ in steps(loop)] == list(range(1, job_of(loop.world.config).steps + 1))


@each_seed
def test_devices_that_come_are_extended_onto_and_those_that_go_are_left_by_destroys(seed: int) -> None:
    pool = [change.primitives for change in records(walk(seed)) if change.trigger.startswith("the pool went")]
    assert any("Extend" in primitives for primitives in pool)
    assert any("Destroy" in primitives for primitives in pool)


@each_seed
def test_growing_responses_make_memory_tight_and_units_are_merged(seed: int) -> None:
    tight = [change.primitives for change in records(walk(seed)) if "predicted to need" in change.trigger]
    assert any("Merge" in primitives for primitives in tight)


@each_seed
def test_some_unit_is_split(seed: int) -> None:
    assert any("Split" in change.primitives for change in records(walk(seed)))


@each_seed
def test_candidate_that_does_not_pay_is_rejected_with_its_figures(seed: int) -> None:
    rejected = [d.verdict for d in decisions(walk(seed)) if d.verdict.code is Code.REJECTED_PAYBACK]
    assert rejected
    for verdict in rejected:
        assert verdict.delta_l_s > 0
        assert verdict.l_tran_s / verdict.delta_l_s > verdict.gamma * verdict.horizon_steps
        assert verdict.gamma == 0.5
        assert verdict.horizon_steps >= 1


@each_seed
def test_admitted_candidate_pays_or_must_be(seed: int) -> None:
    for decision in decisions(walk(seed)):
        verdict = decision.verdict
        if verdict.code is Code.ADMITTED:
            assert 0 < verdict.l_tran_s <= verdict.gamma * verdict.horizon_steps * verdict.delta_l_s
        if verdict.code is Code.ADMITTED_URGENT:
            assert any("which leave" in reason or "predicted to need" in reason for reason in decision.triggers)


@each_seed
def test_no_step_runs_on_a_device_that_is_gone(seed: int) -> None:
    loop = walk(seed)
    assert loop.pool is not None
    for step, plan in steps(loop):
        assert plan.devices <= set(loop.pool.state(step - 1).there), f"step {step}"


@each_seed
def test_every_transition_goes_to_devices_that_stay(seed: int) -> None:
    loop = walk(seed)
    assert loop.pool is not None
    plans = [news for news in loop.news if isinstance(news, Started | TransitionRecord)]
    for before, after in pairwise(plans):
        assert isinstance(after, TransitionRecord)
        staying = set(loop.pool.state(after.step).staying)
        for name, stage in after.plan.stages.items():
            if stage != before.plan.stages[name]:
                assert set(stage.devices) <= staying, f"{name} after step {after.step}"


@each_seed
def test_no_step_runs_that_was_predicted_not_to_fit(seed: int) -> None:
    loop = walk(seed)
    config = loop.world.config
    job = job_of(config)
    cost = native_cost(job.model, job.dtype, 1e10, 1, 8)
    usable = (job.cluster.device.memory or 0) * (1 - job.policy.headroom)
    for step, plan in steps(loop):
        longest = Batch(job.global_batch, job.workload.max_prompt_tokens, job.workload.cap_at(step))
        peaks = cost.peaks(plan, config.states, longest)
        assert max(peaks.values()) <= usable, f"step {step}"


@each_seed
def test_batch_of_a_step_is_fixed_under_any_plan(seed: int) -> None:
    loop = walk(seed)
    batch = job_of(loop.world.config).global_batch
    assert batch == 256
    assert {news.num_samples for news in loop.news if isinstance(news, StepReport)} == {batch}
    for _, plan in steps(loop):
        assert [batch % stage.dp for stage in plan.stages.values()] == [0, 0, 0]


@each_seed
def test_summary_tells_each_transition_and_each_rejected_candidate(seed: int) -> None:
    loop = walk(seed)
    summary = summarize(loop.news, SampleCounts(seen=1, repeated=0, skipped=0), lambda plan, step: 0)
    assert {"epoch", "trigger", "l_tran_predicted_s"} <= set.intersection(*(set(t) for t in summary.transitions))
    assert [t["epoch"] for t in summary.transitions] == list(range(1, len(summary.transitions) + 1))
    assert {"reason", "delta_l_s", "l_tran_s", "horizon_steps"} <= set.intersection(*(set(r) for r in summary.rejected))
    assert len(summary.rejected) == sum(not d.verdict.is_admitted for d in decisions(loop))


@pytest.mark.parametrize("plan_boundaries", [2])
def test_slow_planner_keeps_the_job_running_on_devices_that_are_there(plan_boundaries: int) -> None:
    loop = walk(0, plan_boundaries)
    assert loop.world.stopped is None
    assert loop.pool is not None
    for step, plan in steps(loop):
        assert plan.devices <= set(loop.pool.state(step - 1).there), f"step {step}"
