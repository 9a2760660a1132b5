"""The plan search against brute force over all combinations, and the directions in which its answer may not move."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.planner.request import SearchRequest
from nereus.planner.search import Choice, search
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES
from tests.planner.oracle import brute_force
from tests.planner.problems import nodes_of, random_request, real_request

SEEDS = range(60)
MIB = 1 << 20
TIGHT_BYTES = (1_200_000, 4 * MIB, 7 * MIB, 10 * MIB, 64 * MIB)
"""From what admits no plan of the quickstart's model to what admits all."""

SMALL_POOLS = ((2,), (4,), (4, 2), (3, 3), (4, 4))


def best_seconds(request: SearchRequest) -> float:
    """L_step of the best plan; infinite where there is none."""
    return next((choice.seconds for choice in search(request)), float("inf"))


def assert_valid(request: SearchRequest, choice: Choice) -> None:
    """A choice fits, on its own positions or wherever its model-stages are put."""
    together = sum(c.state_bytes for c in choice.chosen) + max(c.live_bytes for c in choice.chosen)
    room = request.capacity_bytes * (1 - request.headroom)
    assert choice.placed == (together > room)
    assert choice.peak_bytes <= room
    fullest = 0
    for position in range(len(request.devices)):
        here = [c for c in choice.chosen if position in c.plan.devices]
        fullest = max(fullest, sum(c.state_bytes for c in here) + max((c.live_bytes for c in here), default=0))
    assert choice.peak_bytes == (fullest if choice.placed else together)


def assert_best(request: SearchRequest, top: int) -> int:
    """The search returns the `top` best shapes, ties in any order. Returns how many plans there are, up to `top`."""
    optima = brute_force(request, top)
    choices = search(request, top)
    assert [choice.seconds for choice in choices] == pytest.approx([best.seconds for best in optima])
    assert len({choice.shape for choice in choices}) == len(choices)
    for choice in choices:
        assert_valid(request, choice)
        own = sum(c.seconds for c in choice.chosen)
        replicas = next(c.plan.dp for c in choice.chosen if c.plan.stage == request.generates)
        assert choice.seconds == pytest.approx(own + request.cost.sync_seconds(replicas))
    return len(optima)


# --- the optimum -------------------------------------------------------------------------------------------------------


def test_search_finds_the_optimum_of_random_problems() -> None:
    counts = [assert_best(random_request(seed), top=1) for seed in SEEDS]
    assert counts.count(0) > len(SEEDS) // 20, "some problems have no plan"
    assert sum(counts) > len(SEEDS) // 2


def test_search_finds_the_optimum_where_the_weight_sync_costs() -> None:
    for seed in SEEDS[:30]:
        assert_best(random_request(seed, sync_s=3), top=1)


@pytest.mark.parametrize("pool", SMALL_POOLS)
def test_search_finds_the_optimum_of_a_real_model_at_any_memory(pool: tuple[int, ...]) -> None:
    counts = []
    for capacity in TIGHT_BYTES:
        counts.append(assert_best(real_request(pool, capacity, sequences=24, micro_batches=(2, 12)), top=1))
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_nothing_is_found_where_nothing_fits() -> None:
    assert search(real_request((4, 4), 100_000)) == ()
    assert search(real_request((4, 4), 100_000), top=5) == ()


def test_headroom_is_left_free() -> None:
    """A plan that fills a device to the last byte is found without headroom, and not with any."""
    request = replace(real_request((4,), micro_batches=(8,)), headroom=0.0)
    full = replace(request, capacity_bytes=search(request)[0].peak_bytes)
    assert search(full)[0].seconds == search(request)[0].seconds
    assert best_seconds(replace(full, headroom=0.001)) > best_seconds(full)


# --- the K best --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [2, 5])
def test_search_finds_the_best_shapes_of_random_problems_with_one_micro_batch(top: int) -> None:
    for seed in SEEDS:
        assert_best(replace(random_request(seed), micro_batches=(2,)), top)


@pytest.mark.parametrize("top", [3, 5])
def test_search_finds_the_best_shapes_of_random_problems(top: int) -> None:
    for seed in SEEDS:
        assert_best(random_request(seed), top)


def test_search_finds_the_best_shapes_of_the_quickstart() -> None:
    assert_best(real_request((4,), micro_batches=(8, 16, 32)), top=5)


def test_more_choices_begin_with_the_best_one() -> None:
    request = real_request((4, 4), 8 * MIB, micro_batches=(4, 32))
    assert search(request, top=5)[0].seconds == search(request)[0].seconds


# --- what every choice keeps to ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", SMALL_POOLS)
def test_chosen_plans_keep_to_nodes_batch_pool_and_pipeline_rules(pool: tuple[int, ...]) -> None:
    request = real_request(pool, 8 * MIB, sequences=24)
    choices = search(request, top=6)
    assert choices
    for choice in choices:
        plan = choice.plan(epoch=3)
        assert plan.epoch == 3
        assert set(plan.stages) == set(STAGES)
        assert plan.stages[ACTOR_GENERATION].layout.pp == 1
        for stage in plan.stages.values():
            assert stage.layout.tp <= min(pool)
            assert 24 % stage.dp == 0
            assert len(stage.devices) <= sum(pool)


def test_predicted_peak_of_a_choice_is_never_below_that_of_its_plan_on_any_device() -> None:
    for capacity in TIGHT_BYTES:
        request = real_request((4, 4), capacity, sequences=24, micro_batches=(2, 12))
        for choice in search(request, top=4):
            peaks = request.cost.peaks(choice.plan(), request.states, request.longest)
            assert max(peaks.values()) <= choice.peak_bytes <= 0.9 * capacity


def test_latency_of_a_choice_is_that_of_its_plan() -> None:
    request = real_request((4, 4), micro_batches=(4, 32))
    for choice in search(request, top=4):
        assert choice.seconds == pytest.approx(request.cost.step_seconds(choice.plan(), request.mean, ACTOR_GENERATION))


def test_choices_come_fastest_first() -> None:
    seconds = [choice.seconds for choice in search(real_request((4, 4), micro_batches=(4, 32)), top=8)]
    assert seconds == sorted(seconds)


def test_pinned_stages_stay_as_they_are() -> None:
    pinned = {
        ACTOR_TRAINING: StagePlan(ACTOR_TRAINING, Layout(2, 2), 2, (4, 5, 6, 7, 0, 1, 2, 3), 8),
        REFERENCE_INFERENCE: StagePlan(REFERENCE_INFERENCE, Layout(), 3, (1, 2, 3), 4),
    }
    for choice in search(replace(real_request((4, 4)), pinned=pinned), top=4):
        assert {name: choice.plan().stages[name] for name in pinned} == pinned


def test_pinned_stages_that_do_not_fit_leave_no_plan() -> None:
    pinned = {ACTOR_TRAINING: StagePlan(ACTOR_TRAINING, Layout(), 1, (0,), 64)}
    request = replace(real_request((4, 4), 8 * MIB), pinned=pinned)
    assert search(request) == ()


def test_search_gives_the_same_answer_each_time() -> None:
    for seed in range(20):
        assert search(random_request(seed), top=3) == search(random_request(seed), top=3)


# --- monotone ----------------------------------------------------------------------------------------------------------


def test_more_memory_never_makes_the_best_plan_slower() -> None:
    for seed in range(25):
        request = random_request(seed)
        seconds = [best_seconds(replace(request, capacity_bytes=capacity)) for capacity in range(40, 320, 30)]
        assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("capacity", [4 * MIB, 8 * MIB, 64 * MIB])
def test_one_more_device_on_a_node_never_makes_the_best_plan_slower(capacity: int) -> None:
    pools = [(2,), (3,), (4,), (6,), (7,), (8,)]
    seconds = [best_seconds(real_request(pool, capacity, micro_batches=(8,))) for pool in pools]
    assert seconds == sorted(seconds, reverse=True)


def test_one_more_device_on_a_node_of_its_own_never_makes_the_best_plan_slower() -> None:
    before, after = (real_request(pool, 8 * MIB, micro_batches=(4, 32)) for pool in ((4,), (4, 1)))
    assert best_seconds(after) <= best_seconds(before)


def test_devices_in_another_order_of_names_give_the_same_plan() -> None:
    request = real_request((4, 4), 8 * MIB, micro_batches=(4, 32))
    names = (3, 8, 9, 12, 20, 21, 22, 40)
    renamed = replace(request, devices=names, node_of=dict(zip(names, nodes_of((4, 4)).values(), strict=True)))
    assert search(renamed, top=3) == search(request, top=3)


# --- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pool", "most_s"), [((4, 4), 10.0), ((8,) * 8, 30.0)])
def test_search_answers_in_time(
    pool: tuple[int, ...], most_s: float, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Seconds of CPU. The bounds only catch an explosion; the figures are in the report of `--junitxml`."""
    request = real_request(pool)
    for top in (1, 6):
        start = time.process_time()
        search(request, top)
        seconds = time.process_time() - start
        record_testsuite_property(f"search_s_devices_{sum(pool)}_top_{top}", round(seconds, 3))
        assert seconds < most_s
