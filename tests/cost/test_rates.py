"""Rates: conservative before anything is measured, and learnt back from synthetic measurements whose truth is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.batch import Batch
from nereus.cost.rates import (
    BANDWIDTH_BYTES_S,
    REDUCE_LATENCY_S,
    UNSEEN_EFFICIENCY,
    UNSEEN_FLOOR_S,
    WINDOW,
    ClassRate,
    Measurement,
    Rates,
    message_seconds,
    reduce_latency_s,
)
from nereus.cost.work import OpClass, Work, op_class, stage_work
from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES

MODEL = ModelShape(hidden_size=96, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=24, ffn_size=256, vocab_size=64)
"""That of examples/quickstart.yaml."""
PEAK = 4.5e9
RATES = Rates(PEAK)
PLANS = ((1, 1, 1, 64), (1, 1, 8, 32), (2, 1, 4, 64), (1, 2, 4, 4), (1, 1, 4, 4), (2, 1, 2, 16), (1, 4, 2, 8))
"""tp, pp, dp, micro-batch: what a run with a few transitions has seen."""
BATCHES = tuple(Batch(256, 6, tokens) for tokens in (6, 12, 20))
NOISE = 0.03
QUIET = Work(OpClass.TRAIN, 1e9, 100, 0, 0, 0, 0, 0, 0)
"""Work without messages."""

Truth = tuple[float, float]
"""Floor in seconds, efficiency."""
NEAR_PRIOR: Truth = (2e-3, 0.2)
FLOORS_COUNT: tuple[Truth, ...] = ((1e-2, 0.5), (2e-3, 0.9))
"""The share of the floor is twelve and four and a half times what the prior says, so that noise cannot hide it."""


def true_seconds(work: Work, tp: int, dp: int, truth: Truth) -> float:
    """The formula of section 4.2: floors, FLOPs at an efficiency, messages."""
    floor_s, efficiency = truth
    return floor_s * work.calls + work.flops / (PEAK * efficiency) + message_seconds(work, tp, dp)


def works(stage: str, plans: Iterable[tuple[int, int, int, int]] = PLANS) -> list[tuple[Work, int, int]]:
    """The work of a model-stage on each plan and batch, with tp and dp."""
    found = []
    for (tp, pp, dp, micro_batch), batch in product(plans, BATCHES):
        if stage != ACTOR_GENERATION or pp == 1:
            plan = StagePlan(stage, Layout(tp, pp), dp, tuple(range(tp * pp * dp)), micro_batch)
            found.append((stage_work(plan, MODEL, "float32", batch), tp, dp))
    return found


def measured(stage: str, truth: Truth, seed: int = 0, odd: tuple[int, float] = (-1, 1.0)) -> tuple[Measurement, ...]:
    """Noisy measurements on all plans; the one at `odd[0]` is off by the factor `odd[1]`."""
    random = Random(seed)
    return tuple(
        Measurement(
            work,
            (tp, dp),
            true_seconds(work, tp, dp, truth) * (1 + random.gauss(0, NOISE)) * (odd[1] if index == odd[0] else 1),
        )
        for index, (work, tp, dp) in enumerate(works(stage))
    )


def worst_error(rates: Rates, stage: str, truth: Truth) -> float:
    """The largest relative error over all plans and batches."""
    return max(abs(rates.seconds(w, tp, dp) / true_seconds(w, tp, dp, truth) - 1) for w, tp, dp in works(stage))


# --- before anything is measured ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OpClass)
def test_unseen_class_is_slow_and_never_free(kind: OpClass) -> None:
    assert RATES.rate(kind) == ClassRate(UNSEEN_FLOOR_S, UNSEEN_EFFICIENCY, 0)
    assert 0 < UNSEEN_EFFICIENCY < 0.5
    only_flops, only_calls = replace(QUIET, op_class=kind, calls=0), replace(QUIET, op_class=kind, flops=0)
    assert RATES.seconds(only_flops, 1, 1) == pytest.approx(1e9 / PEAK / UNSEEN_EFFICIENCY)
    assert RATES.seconds(only_calls, 1, 1) == pytest.approx(100 * UNSEEN_FLOOR_S)
    assert min(RATES.seconds(only_flops, 1, 1), RATES.seconds(only_calls, 1, 1)) > 0


def test_learning_one_class_leaves_the_others_unseen() -> None:
    learnt = RATES.learn(measured(ACTOR_TRAINING, NEAR_PRIOR))
    assert set(learnt.classes) == {OpClass.TRAIN}
    assert learnt.rate(OpClass.DECODE) == ClassRate()


def test_seconds_are_floors_and_flops_and_messages() -> None:
    rates = Rates(1e9, {OpClass.TRAIN: ClassRate(0.01, 0.5, 3)})
    work = replace(QUIET, reduces=10, reduce_bytes=1e6)
    expected = 100 * 0.01 + 1e9 / (1e9 * 0.5) + 10 * (REDUCE_LATENCY_S[2] + 1e6 / BANDWIDTH_BYTES_S)
    assert rates.seconds(work, 2, 1) == pytest.approx(expected)


# --- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stage", STAGES)
def test_learning_recovers_floor_and_efficiency(stage: str, seed: int) -> None:
    """Floors are a tenth of the time or so, of which noise hides a part."""
    rate = RATES.learn(measured(stage, NEAR_PRIOR, seed)).rate(op_class(stage))
    assert rate.floor_s == pytest.approx(NEAR_PRIOR[0], rel=0.25)
    assert rate.efficiency == pytest.approx(NEAR_PRIOR[1], rel=0.1)


@pytest.mark.parametrize("truth", [NEAR_PRIOR, (5e-4, 0.6), (5e-3, 0.1), (1e-4, 0.3)])
@pytest.mark.parametrize("stage", STAGES)
def test_learnt_rates_predict_every_plan_within_ten_per_cent(stage: str, truth: Truth) -> None:
    assert worst_error(RATES.learn(measured(stage, truth)), stage, truth) < 0.1


@pytest.mark.parametrize("truth", FLOORS_COUNT)
@pytest.mark.parametrize("stage", [REFERENCE_INFERENCE, ACTOR_TRAINING])
def test_learning_recovers_floor_and_efficiency_where_floors_count(stage: str, truth: Truth) -> None:
    rate = RATES.learn(measured(stage, truth)).rate(op_class(stage))
    assert (rate.floor_s, rate.efficiency) == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("truth", FLOORS_COUNT)
@pytest.mark.parametrize("stage", [REFERENCE_INFERENCE, ACTOR_TRAINING])
def test_learnt_rates_predict_every_plan_where_floors_count(stage: str, truth: Truth) -> None:
    assert worst_error(RATES.learn(measured(stage, truth)), stage, truth) < 0.1


@pytest.mark.parametrize("index", [0, 5, 12, 20])
@pytest.mark.parametrize("stage", [REFERENCE_INFERENCE, ACTOR_TRAINING])
def test_one_measurement_that_is_ten_times_too_long_hardly_matters(stage: str, index: int) -> None:
    learnt = RATES.learn(measured(stage, NEAR_PRIOR, odd=(index, 10.0)))
    assert worst_error(learnt, stage, NEAR_PRIOR) < 0.05


def test_one_measurement_that_is_ten_times_too_short_hardly_matters() -> None:
    learnt = RATES.learn(measured(ACTOR_TRAINING, NEAR_PRIOR, odd=(5, 0.1)))
    assert worst_error(learnt, ACTOR_TRAINING, NEAR_PRIOR) < 0.2


def test_first_measurement_that_is_four_times_too_long_is_soon_outweighed() -> None:
    """The first step of a new actor is four times slower (issue 3)."""
    work, tp, dp = works(ACTOR_TRAINING)[0]
    right = true_seconds(work, tp, dp, NEAR_PRIOR)
    learnt = RATES.learn((Measurement(work, (tp, dp), 4 * right),)).learn((Measurement(work, (tp, dp), right),) * 2)
    assert learnt.seconds(work, tp, dp) == pytest.approx(right, rel=0.2)


@pytest.mark.parametrize("factor", [0.3, 1, 5])
@pytest.mark.parametrize("stage", STAGES)
def test_one_plan_alone_meets_its_own_measurement(stage: str, factor: float) -> None:
    for work, tp, dp in works(stage):
        seconds = factor * RATES.seconds(work, tp, dp) + message_seconds(work, tp, dp)
        learnt = RATES.learn((Measurement(work, (tp, dp), seconds),))
        assert learnt.seconds(work, tp, dp) == pytest.approx(seconds)


@pytest.mark.xfail(strict=True, reason="messages keep their declared cost: what is measured below it is never met")
def test_one_plan_alone_meets_a_measurement_that_is_below_the_declared_messages() -> None:
    work = replace(QUIET, reduces=1000, reduce_bytes=1e3)
    seconds = message_seconds(work, 4, 1) / 5
    assert RATES.learn((Measurement(work, (4, 1), seconds),)).seconds(work, 4, 1) == pytest.approx(seconds, rel=0.1)


def test_one_plan_alone_divides_its_time_as_the_prior_does() -> None:
    work, tp, dp = works(ACTOR_TRAINING)[0]
    rate = RATES.learn((Measurement(work, (tp, dp), 3 * RATES.seconds(work, tp, dp)),)).rate(OpClass.TRAIN)
    assert rate.floor_s * rate.efficiency == pytest.approx(UNSEEN_FLOOR_S * UNSEEN_EFFICIENCY)


def test_learning_keeps_a_window_of_each_class() -> None:
    old = (Measurement(QUIET, (1, 1), 50.0),) * 10
    new = (Measurement(QUIET, (1, 1), 2.0),) * WINDOW
    other = (Measurement(replace(QUIET, op_class=OpClass.DECODE), (1, 1), 7.0),)
    learnt = RATES.learn(other).learn(old).learn(new)
    assert sorted(m.seconds for m in learnt.measured) == [2.0] * WINDOW + [7.0]
    assert learnt.rate(OpClass.TRAIN).num_measured == WINDOW
    assert learnt.seconds(QUIET, 1, 1) == pytest.approx(2.0)


def test_learning_in_parts_is_learning_at_once() -> None:
    all_of_them = measured(REFERENCE_INFERENCE, NEAR_PRIOR)
    in_parts = RATES
    for measurement in all_of_them:
        in_parts = in_parts.learn((measurement,))
    assert in_parts == RATES.learn(all_of_them)


def test_learning_follows_a_drift_within_a_window() -> None:
    slower = (NEAR_PRIOR[0] * 2, NEAR_PRIOR[1] / 2)
    learnt = RATES.learn(measured(ACTOR_TRAINING, NEAR_PRIOR)).learn(measured(ACTOR_TRAINING, slower) * 2)
    assert worst_error(learnt, ACTOR_TRAINING, slower) < 0.1


def test_learning_does_not_change_the_rates_that_it_started_from() -> None:
    RATES.learn(measured(ACTOR_TRAINING, NEAR_PRIOR))
    assert Rates(PEAK) == RATES


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e5), st.floats(1e6, 1e12), st.floats(1e-3, 1e3)), min_size=1, max_size=30))
def test_learnt_rates_are_finite_and_floors_are_not_negative(found: list[tuple[float, float, float]]) -> None:
    window = tuple(Measurement(replace(QUIET, calls=calls, flops=flops), (1, 1), s) for calls, flops, s in found)
    rate = RATES.learn(window).rate(OpClass.TRAIN)
    assert 0 <= rate.floor_s < float("inf")
    assert 0 < rate.efficiency < float("inf")
    assert RATES.learn(window).seconds(QUIET, 1, 1) > 0


# --- messages ----------------------------------------------------------------------------------------------------------


def test_groups_of_one_cost_nothing() -> None:
    assert reduce_latency_s(1) == 0
    work = replace(QUIET, reduces=1000, reduce_bytes=1e9, gradient_reduces=10, gradient_bytes=1e9)
    assert message_seconds(work, 1, 1) == 0


def test_messages_cost_latency_and_ring_bytes_by_hand() -> None:
    """Over 4 members each byte crosses a link 2 * 3 / 4 times; over 2, once. A hop has half a pair's latency."""
    reduces = replace(QUIET, reduces=10, reduce_bytes=2e6)
    assert message_seconds(reduces, 4, 1) == pytest.approx(10 * (5e-3 + 1.5 * 2e6 / 1e9))
    gradients = replace(QUIET, gradient_reduces=2, gradient_bytes=3e6)
    assert message_seconds(gradients, 1, 2) == pytest.approx(2 * (7e-4 + 3e6 / 1e9))
    hops = replace(QUIET, hops=8, hop_bytes=1e6)
    assert message_seconds(hops, 1, 1) == pytest.approx(8 * (3.5e-4 + 1e6 / 1e9))


def test_latency_grows_with_the_group_and_meets_what_was_measured() -> None:
    latencies = [reduce_latency_s(size) for size in range(1, 65)]
    assert all(a < b for a, b in pairwise(latencies))
    assert [reduce_latency_s(size) for size in REDUCE_LATENCY_S] == list(REDUCE_LATENCY_S.values())
    assert reduce_latency_s(16) == pytest.approx(4e-2)


COUNTS = st.integers(0, 50)
BYTES = st.floats(0, 1e8)


@settings(max_examples=200, deadline=None)
@given(
    before=st.tuples(COUNTS, BYTES, COUNTS, BYTES, COUNTS, BYTES),
    more=st.tuples(COUNTS, BYTES, COUNTS, BYTES, COUNTS, BYTES),
    groups=st.tuples(st.integers(1, 16), st.integers(1, 16)),
    larger=st.tuples(st.integers(0, 16), st.integers(0, 16)),
)
def test_more_or_larger_messages_in_larger_groups_never_cost_less(
    before: tuple[float, ...], more: tuple[float, ...], groups: tuple[int, int], larger: tuple[int, int]
) -> None:
    def work(values: Iterable[float]) -> Work:
        reduces, reduce_bytes, hops, hop_bytes, gradient_reduces, gradient_bytes = values
        return Work(OpClass.TRAIN, 0, 0, reduces, reduce_bytes, hops, hop_bytes, int(gradient_reduces), gradient_bytes)

    after = [a + b for a, b in zip(before, more, strict=True)]
    (tp, dp), (more_tp, more_dp) = groups, larger
    assert message_seconds(work(before), tp, dp) <= message_seconds(work(after), tp + more_tp, dp + more_dp) + 1e-12
