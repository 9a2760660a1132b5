"""Ties: of equally fast plans the one on the fewest of the first devices, by brute force over the shorter pools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.planner.fewest import on_fewest_devices
from nereus.planner.problem import Pool, Problem, Stage
from nereus.planner.rules import Rules, Shared
from nereus.planner.solve import solve
from nereus.spec.hf_config import HfModel
from tests.planner.checking import assert_holds
from tests.planner.exhaustive import brute_force_plans
from tests.planner.instances import random_offloads, random_problem, replaced
from tests.planner.test_exact_search import make_holder
from tests.planner.test_outlined import SMALL, best, planner


def first(problem: Problem, count: int) -> Problem:
    """The problem on the first so many devices."""
    sizes, kinds, hosts = [], [], []
    for node in problem.pool.nodes:
        taken = min(len(node.devices), count - sum(sizes))
        if taken:
            sizes.append(taken)
            kinds.append(node.kind)
            hosts.append(node.host_bytes)
    return replaced(problem, Pool.of(sizes, problem.pool.capacity_bytes, kinds, hosts))


@pytest.mark.parametrize("make", [random_problem, random_offloads])
def test_no_shorter_pool_has_a_plan_as_fast(make: type) -> None:
    fewer = 0
    for seed in range(16):
        problem = make(seed)
        found, _ = solve(problem)
        if not found or len(problem.holders) == 5:
            continue
        chosen = on_fewest_devices(problem, found[0])
        assert_holds(problem, chosen)
        assert chosen.step_seconds == found[0].step_seconds
        patterns = [pattern for state in chosen.placement for pattern, count in state for _ in range(count)]
        used = sum(bool(pattern) for pattern in patterns)
        assert used <= sum(c for s in found[0].placement for pattern, c in s if pattern)
        fewer += used < problem.pool.num_devices
        shorter = brute_force_plans(first(problem, used - 1)) if used > 1 else []
        assert not shorter or shorter[0][0] > chosen.step_seconds, seed
    assert fewer > 1


def test_row_that_saves_nothing_is_not_given_devices() -> None:
    """The reward scores in the shadow of the reference, on one device as well as on four."""
    reference = make_holder("ref", Stage.INFERENCE, (8.0, 2, 1, 1))
    reward = make_holder("rew", Stage.INFERENCE, (2.0, 4, 1, 1), (7.0, 1, 1, 1), (8.0, 2, 1, 1))
    problem = Problem((reference, reward), Pool.of([4, 4], 10.0))
    (found,), _ = solve(problem)
    chosen = on_fewest_devices(problem, found)
    assert chosen.step_seconds == 8.0
    assert chosen.placement == (((0, 1), (1, 2), (2, 1)), ((0, 4),))


def test_search_below_a_known_step_finds_what_is_below_and_nothing_else() -> None:
    for seed in range(40):
        problem = random_problem(seed)
        found, _ = solve(problem)
        if found:
            slower = replace(found[0], step_seconds=found[0].step_seconds + 1)
            assert solve(problem, known=found)[0] == found
            assert solve(problem, known=(slower,))[0][0].step_seconds == found[0].step_seconds


def test_plan_of_an_outline_uses_no_device_that_buys_nothing() -> None:
    """Reference, reward and critic on two devices each run at the same time on six; the other two would stay idle."""
    pins = {holder: {"tp": 1, "pp": 1, "dp": 2} for holder in planner().outline.workflow.holders}
    plan = best(planner(pins=pins))
    assert {device for devices in plan.devices.values() for device in devices} == set(range(plan.num_devices))
    assert plan.num_devices <= 6
    assert best(planner(plan.num_devices, pins=pins)).seconds == pytest.approx(plan.seconds)
    assert best(planner(plan.num_devices - 1, pins=pins)).seconds > plan.seconds


def test_plan_on_the_fewest_devices_keeps_what_holders_share() -> None:
    """A reward model of a quarter of the layers is in the reference's shadow on one device too, but must have its DP."""
    small = HfModel(replace(SMALL.decoder, num_layers=SMALL.decoder.num_layers // 4), "")
    two = {"tp": 1, "pp": 1, "dp": 2}
    asked = planner(pins={holder: two for holder in planner().outline.workflow.holders if holder != "reward_inference"})
    alike = Shared("one DP degree", lambda option: option.run.dp, frozenset(("reference_inference", "reward_inference")))
    free = replace(asked, models={**asked.models, "reward": small})
    bound = replace(free, rules=Rules(shared=(alike,)))
    assert best(free).options["reward_inference"].num_devices == 1
    plan = best(bound)
    assert bound.rules.broken(plan.options, bound.pricer) == ()
    assert plan.seconds == pytest.approx(best(free).seconds, rel=1e-9)


def test_best_plan_with_a_shared_setting_is_the_best_of_its_values() -> None:
    holders = planner().outline.workflow.holders
    one_tp = Shared("one TP degree holds for all", lambda option: option.run.tp, frozenset(holders))
    each = [best(planner(pins={holder: {"tp": tp} for holder in holders})) for tp in (1, 2, 4, 8)]
    plan = best(planner(rules=Rules(shared=(one_tp,))))
    assert plan.seconds == pytest.approx(min(other.seconds for other in each), rel=1e-9)
