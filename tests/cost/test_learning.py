"""Learning: conservative before anything is measured, and a known truth is learnt back from a run's stage times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.batch import Batch
from nereus.cost.native import NATIVE, UNSEEN_NATIVE
from nereus.cost.operations import OpClass
from nereus.cost.step import WINDOW, CostModel, Measurement
from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.spec.hardware import CPU_BYTES_S
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES, role_of
from tests.cost.native import COST, PEAK, efficiency, floor_s, stage_plan, with_rates

PLANS = ((1, 1, 1, 64), (1, 1, 8, 32), (2, 1, 4, 64), (1, 2, 4, 4), (1, 1, 4, 4), (2, 1, 2, 16), (1, 4, 2, 8))
"""tp, pp, dp, micro-batch: what a run with a few transitions has seen."""
BATCHES = tuple(Batch(256, 6, tokens) for tokens in (6, 12, 20))
NOISE = 0.03

Truth = tuple[float, float]
"""Floor of a call in seconds, efficiency of a FLOP."""
NEAR_PRIOR: Truth = (2e-3, 0.2)
FLOORS_COUNT: tuple[Truth, ...] = ((1e-2, 0.5), (2e-3, 0.9))
"""The share of the floor is twelve and four and a half times what the prior says, so that noise cannot hide it."""


def runs(stage: str, plans: Iterable[tuple[int, int, int, int]] = PLANS) -> Iterator[tuple[StagePlan, Batch]]:
    """A model-stage on each plan and batch."""
    for (tp, pp, dp, micro_batch), batch in product(plans, BATCHES):
        if stage != ACTOR_GENERATION or pp == 1:
            yield StagePlan(stage, Layout(tp, pp), dp, tuple(range(tp * pp * dp)), micro_batch), batch


def measured(
    stage: str, truth: CostModel, seed: int = 0, odd: tuple[int, float] = (-1, 1.0), noise: float = NOISE
) -> tuple[Measurement, ...]:
    """Noisy measurements on all plans; the one at `odd[0]` is off by the factor `odd[1]`."""
    random = Random(seed)
    return tuple(
        Measurement(
            plan,
            batch,
            truth.stage_seconds(plan, batch) * (1 + random.gauss(0, noise)) * (odd[1] if index == odd[0] else 1),
        )
        for index, (plan, batch) in enumerate(runs(stage))
    )


def worst_error(learnt: CostModel, stage: str, truth: CostModel) -> float:
    """The largest relative error over all plans and batches."""
    return max(abs(learnt.stage_seconds(*run) / truth.stage_seconds(*run) - 1) for run in runs(stage))


def ran(seconds: float, plan: StagePlan | None = None, batch: Batch = BATCHES[1]) -> Measurement:
    return Measurement(plan or stage_plan(ACTOR_TRAINING), batch, seconds)


# --- before anything is measured ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OpClass)
def test_no_unseen_class_is_free(op: OpClass) -> None:
    assert 0 < UNSEEN_NATIVE[op].value <= 1
    assert not UNSEEN_NATIVE[op].measured


@pytest.mark.parametrize("stage", STAGES)
def test_an_unmeasured_stage_takes_at_least_twice_its_timed_peak(stage: str) -> None:
    fastest = with_rates(1e-9, 0.5)
    assert all(COST.stage_seconds(*run) > fastest.stage_seconds(*run) for run in runs(stage))


def test_learning_one_role_leaves_the_others_unseen() -> None:
    learnt = COST.learn(measured(ACTOR_TRAINING, with_rates(*NEAR_PRIOR)))
    assert set(learnt.learnt) == {"training"}
    for stage in (ACTOR_GENERATION, REFERENCE_INFERENCE):
        assert all(learnt.stage_seconds(*run) == COST.stage_seconds(*run) for run in runs(stage))


def test_messages_of_a_kind_that_never_ran_stay_as_declared() -> None:
    """However much faster the device turns out to be than its timed peak."""
    alone = stage_plan(REFERENCE_INFERENCE, "dp4")
    learnt = COST.learn([ran(COST.stage_seconds(alone, BATCHES[1]) / 5, alone)]).learnt["inference"]
    assert learnt.values[OpClass.GEMM].value > 4 * UNSEEN_NATIVE[OpClass.GEMM].value
    for op in (OpClass.TP_NODE, OpClass.TP_LATENCY_NODE, OpClass.SEND_NODE):
        assert learnt.values[op] == UNSEEN_NATIVE[op]


# --- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stage", STAGES)
def test_learning_recovers_floor_and_efficiency(stage: str, seed: int) -> None:
    """Floors are a tenth of the time or so, of which noise hides a part."""
    learnt, role = COST.learn(measured(stage, with_rates(*NEAR_PRIOR), seed)), str(role_of(stage))
    assert floor_s(learnt, role) == pytest.approx(NEAR_PRIOR[0], rel=0.25)
    assert efficiency(learnt, role) == pytest.approx(NEAR_PRIOR[1], rel=0.1)


@pytest.mark.parametrize("truth", [NEAR_PRIOR, (5e-4, 0.6), (5e-3, 0.1), (1e-4, 0.3)])
@pytest.mark.parametrize("stage", STAGES)
def test_what_was_learnt_predicts_every_plan_within_ten_per_cent(stage: str, truth: Truth) -> None:
    machine = with_rates(*truth)
    assert worst_error(COST.learn(measured(stage, machine)), stage, machine) < 0.1


@pytest.mark.parametrize("truth", FLOORS_COUNT)
@pytest.mark.parametrize("stage", [REFERENCE_INFERENCE, ACTOR_TRAINING])
def test_learning_recovers_floor_and_efficiency_where_floors_count(stage: str, truth: Truth) -> None:
    learnt, role = COST.learn(measured(stage, with_rates(*truth))), str(role_of(stage))
    assert (floor_s(learnt, role), efficiency(learnt, role)) == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("truth", FLOORS_COUNT)
@pytest.mark.parametrize("stage", [REFERENCE_INFERENCE, ACTOR_TRAINING])
def test_what_was_learnt_predicts_every_plan_where_floors_count(stage: str, truth: Truth) -> None:
    machine = with_rates(*truth)
    assert worst_error(COST.learn(measured(stage, machine)), stage, machine) < 0.1


@pytest.mark.parametrize("factor", [0.2, 5.0])
@pytest.mark.parametrize("stage", [ACTOR_GENERATION, REFERENCE_INFERENCE])
def test_the_cost_of_messages_is_learnt(stage: str, factor: float) -> None:
    """A transport five times faster or slower than declared, where collectives are a good part of the time."""
    machine = with_rates(2e-4, 0.8, tp_latency_node=factor)
    learnt = COST.learn(measured(stage, machine))
    latency = learnt.learnt[str(role_of(stage))].values[OpClass.TP_LATENCY_NODE].value
    assert abs(log(factor / latency)) < 0.7 * abs(log(factor)), "noise hides a part of a small share"
    assert worst_error(learnt, stage, machine) < 0.15


@pytest.mark.parametrize("index", [0, 5, 12, 20])
@pytest.mark.parametrize("stage", [REFERENCE_INFERENCE, ACTOR_TRAINING])
def test_one_measurement_that_is_ten_times_too_long_hardly_matters(stage: str, index: int) -> None:
    machine = with_rates(*NEAR_PRIOR)
    assert worst_error(COST.learn(measured(stage, machine, odd=(index, 10.0))), stage, machine) < 0.06


@pytest.mark.parametrize("index", [0, 5, 12, 20])
def test_one_measurement_that_is_ten_times_too_short_hardly_matters(index: int) -> None:
    machine = with_rates(*NEAR_PRIOR)
    assert worst_error(COST.learn(measured(ACTOR_TRAINING, machine, odd=(index, 0.1))), ACTOR_TRAINING, machine) < 0.1


@pytest.mark.parametrize("before", [3, 6, WINDOW])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_the_last_step_disturbed_does_not_move_the_plan_that_runs(before: int, factor: float) -> None:
    steady, right = COST.learn([ran(2.0)] * before), 2.0
    after = steady.learn([ran(right * factor)])
    assert after.stage_seconds(stage_plan(ACTOR_TRAINING), BATCHES[1]) == pytest.approx(right, rel=0.05)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_one_disturbed_step_on_a_new_plan_does_not_change_what_else_is_cheap(factor: float) -> None:
    """The first step after a transition is the only one of its kind, and the likeliest to be disturbed."""
    wide, narrow, other = (stage_plan(ACTOR_TRAINING, text, 16) for text in ("dp8", "dp4", "pp2 dp2"))
    batch, machine = BATCHES[1], with_rates(7e-4, 0.6)
    before = COST.learn([Measurement(wide, batch, machine.stage_seconds(wide, batch))] * WINDOW)
    after = before.learn([Measurement(narrow, batch, factor * machine.stage_seconds(narrow, batch))])

    def share(cost: CostModel, plan: StagePlan) -> float:
        return cost.stage_seconds(plan, batch) / cost.stage_seconds(narrow, batch)

    for plan in (wide, other):
        assert share(after, plan) == pytest.approx(share(before, plan), rel=0.15)


def test_first_measurement_that_is_four_times_too_long_is_soon_outweighed() -> None:
    """The first step of a new actor is four times slower (issue 3)."""
    learnt = COST.learn([ran(8.0)]).learn([ran(2.0)] * 2)
    assert learnt.stage_seconds(stage_plan(ACTOR_TRAINING), BATCHES[1]) == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize("factor", [0.3, 1, 5])
@pytest.mark.parametrize("stage", STAGES)
def test_one_plan_alone_meets_its_own_measurement(stage: str, factor: float) -> None:
    for plan, batch in runs(stage):
        seconds = factor * COST.stage_seconds(plan, batch)
        learnt = COST.learn([Measurement(plan, batch, seconds)])
        assert learnt.stage_seconds(plan, batch) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("factor", [5, 50])
def test_one_plan_alone_meets_a_measurement_that_is_below_the_declared_messages(factor: float) -> None:
    """Small token steps over four ranks are hundreds of messages and hardly any FLOPs."""
    plan, batch = stage_plan(ACTOR_GENERATION, "tp4", 16), Batch(64, 6, 20)
    work = COST.workload(plan, batch)
    latency = sum(phase.slots * phase.device[0][OpClass.TP_LATENCY_NODE.position] for phase in work.phases)
    assert latency == pytest.approx(4 * 20 * (2 * 4 + 2) * 5e-3), "a call of each layer and one more, at each token"
    learnt = COST.learn([Measurement(plan, batch, latency / factor)])
    assert learnt.stage_seconds(plan, batch) == pytest.approx(latency / factor, rel=0.1)


def test_one_plan_alone_divides_its_time_as_the_prior_does() -> None:
    plan = stage_plan(ACTOR_TRAINING)
    learnt = COST.learn([ran(3 * COST.stage_seconds(plan, BATCHES[1]), plan)])
    assert floor_s(learnt, "training") * efficiency(learnt, "training") == pytest.approx(2e-3 * 0.2, rel=0.1)
    assert floor_s(learnt, "training") == pytest.approx(3 * 2e-3, rel=0.1)


def test_learning_keeps_a_window_of_each_role() -> None:
    plan = stage_plan(ACTOR_TRAINING)
    other = Measurement(stage_plan(ACTOR_GENERATION), BATCHES[1], 7.0)
    learnt = COST.learn([other]).learn([ran(50.0)] * 10).learn([ran(2.0)] * WINDOW)
    assert sorted(one.seconds for one in learnt.measured) == [2.0] * WINDOW + [7.0]
    assert learnt.learnt["training"].num_measured == WINDOW
    assert learnt.stage_seconds(plan, BATCHES[1]) == pytest.approx(2.0, rel=0.01)


def test_learning_in_parts_is_learning_at_once() -> None:
    all_of_them = measured(REFERENCE_INFERENCE, with_rates(*NEAR_PRIOR))
    in_parts = COST
    for measurement in all_of_them:
        in_parts = in_parts.learn((measurement,))
    assert in_parts == COST.learn(all_of_them)


def test_learning_follows_a_drift_within_a_window() -> None:
    slower = with_rates(NEAR_PRIOR[0] * 2, NEAR_PRIOR[1] / 2)
    before = COST.learn(measured(ACTOR_TRAINING, with_rates(*NEAR_PRIOR)))
    assert worst_error(before.learn(measured(ACTOR_TRAINING, slower) * 2), ACTOR_TRAINING, slower) < 0.1


@pytest.mark.parametrize("factor", [0.67, 1.5, 3.0])
def test_learning_follows_a_drift_within_a_few_steps(factor: float) -> None:
    """A device that slows down or recovers, after a whole window at the old pace."""
    learnt = COST.learn([ran(2.0)] * WINDOW).learn([ran(2.0 * factor)] * 8)
    assert learnt.stage_seconds(stage_plan(ACTOR_TRAINING), BATCHES[1]) == pytest.approx(2.0 * factor, rel=0.1)


def test_learning_leaves_the_model_that_it_started_from() -> None:
    before = replace(COST)
    COST.learn(measured(ACTOR_TRAINING, with_rates(*NEAR_PRIOR)))
    assert before == COST
    assert not COST.measured


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["tp1", "dp4", "tp2 dp2", "pp2"]), st.integers(1, 64), st.floats(1, 40), st.floats(1e-3, 1e3)
        ),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_was_measured_predictions_stay_positive_and_finite(found: list[tuple[str, int, float, float]]) -> None:
    window = [ran(s, stage_plan(ACTOR_TRAINING, text, micro), Batch(256, 6, tokens)) for text, micro, tokens, s in found]
    learnt = COST.learn(window)
    assert all(0 < learnt.stage_seconds(*run) < float("inf") for run in runs(ACTOR_TRAINING))


# --- messages ----------------------------------------------------------------------------------------------------------


def test_latency_is_what_was_measured_and_grows_with_the_group() -> None:
    run = COST.execution(stage_plan(ACTOR_TRAINING), BATCHES[1])
    link = run.hardware.link(8)
    latencies = [run.reduce_latency_s(size, link) for size in range(1, 65)]
    assert latencies == sorted(latencies)
    assert latencies[0] == 0
    assert [run.reduce_latency_s(size, link) for size, _ in NATIVE.reduce_latency_s] == [0, 7e-4, 5e-3, 2e-2]
    assert latencies[15] == pytest.approx(4e-2)


def test_messages_cost_latency_and_ring_bytes_by_hand() -> None:
    """Over 4 members each byte crosses a link 2 * 3 / 4 times. A hop has half a pair's latency."""
    batch = Batch(256, 6, 12)
    scored = COST.workload(stage_plan(REFERENCE_INFERENCE, "tp4 dp2", 32), batch).phases[0].device[0]
    assert scored[OpClass.TP_LATENCY_NODE.position] == pytest.approx(10 * 5e-3)
    assert scored[OpClass.TP_NODE.position] == pytest.approx(10 * 1.5 * 32 * 18 * 96 * 4 / CPU_BYTES_S)
    trained = COST.workload(stage_plan(ACTOR_TRAINING, "pp2 dp4", 16), batch)
    hop = 16 * 18 * 96 * 4 / CPU_BYTES_S + 3.5e-4
    assert trained.phases[0].between[OpClass.SEND_NODE.position] == pytest.approx(2 * hop)
    parameters = 2 * (96 * (96 * 2 + 48 * 2) + 3 * 96 * 256 + 2 * 96) + 64 * 96
    gradients = 5e-3 + 2 * 3 / 4 * parameters * 4 / CPU_BYTES_S
    assert trained.serial[OpClass.REDUCE_NODE.position] == pytest.approx(gradients)


def test_seconds_are_floors_and_flops_and_messages() -> None:
    """The formula of section 4.2, summed by hand."""
    plan, batch = stage_plan(REFERENCE_INFERENCE, "tp2", 32), Batch(64, 6, 12)
    token = 2 * (96 * (48 * 2 + 24 * 2) + 3 * 96 * 128) + 4 * 9 * 48
    flops = 64 * (18 * 4 * token + 12 * 2 * 96 * 32)
    messages = 2 * 10 * (7e-4 + 32 * 18 * 96 * 4 / CPU_BYTES_S)
    expected = 2 * 5 * 0.01 + flops / (PEAK * 0.5) + messages
    assert with_rates(0.01, 0.5).stage_seconds(plan, batch) == pytest.approx(expected)
