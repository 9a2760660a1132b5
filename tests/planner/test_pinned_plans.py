"""Plans under pins: they agree with every one, nothing is lost but what the pins forbid, and each pin has its price."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest

from nereus.planner.explain import Why
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.pinned import devices_of
from nereus.planner.problem import Pool, Problem
from nereus.planner.solve import solve
from tests.planner.exhaustive import literal
from tests.planner.instances import CAPACITY, random_problem
from tests.planner.test_outlined import best, planner


@pytest.mark.parametrize(
    "pin",
    [
        {"tp": 2, "pp": 2, "dp": 2},
        {"micro_batch": 2},
        {"recompute": True, "zero1": False},
        {"devices": "2-5"},
        {"tp": 2, "devices": "0-1,6-7"},
    ],
)
def test_plan_agrees_with_a_pin(pin: dict[str, Any]) -> None:
    found = planner(pins={"actor_training": pin})
    plan = best(found)
    run = plan.options["actor_training"].run
    for name, value in pin.items():
        if name == "devices":
            assert plan.devices["actor_training"] == found.outline.pin("actor_training").devices
        else:
            assert {"recompute": plan.options["actor_training"].recomputes}.get(name, getattr(run, name)) == value
    assert "(pinned)" in str(plan.options["actor_training"])
    assert "(pinned)" not in str(plan.options["critic_training"])


def test_pin_to_what_the_best_plan_has_changes_nothing() -> None:
    free = best(planner())
    pins = {
        holder: {"tp": o.run.tp, "pp": o.run.pp, "dp": o.run.dp, "micro_batch": o.run.micro_batch}
        for holder, o in free.options.items()
    }
    where = {holder: {**pin, "devices": list(free.devices[holder])} for holder, pin in pins.items()}
    assert best(planner(pins=pins)).seconds == free.seconds == best(planner(pins=where)).seconds


def test_price_of_a_pin_is_the_step_without_it() -> None:
    free = best(planner()).seconds
    slow = planner(pins={"actor_training": {"micro_batch": 1, "recompute": True}})
    reason = next(reason for reason in slow.reasons() if reason.code is Why.PINNED)
    assert reason.seconds == pytest.approx(best(slow).seconds - free)
    assert "actor_training is pinned to micro_batch 1, recompute True; without that a step would take" in reason.sentence


def test_pin_that_leaves_no_option_is_named() -> None:
    none: OutlinePlanner = planner(pins={"actor_training": {"micro_batch": 3}})
    assert none.best(1)[0] == ()
    assert "pins.actor_training" in none.without_option()["actor_training"]
    beyond = planner(4, pins={"actor_training": {"devices": "2-5"}})
    assert "has 5, and the plan is for the first 4" in beyond.without_option()["actor_training"]


def pinned_problem(seed: int) -> Problem:
    """A random problem on four devices, of which one holder has some of its own, with several rows for them."""
    random, problem = Random(seed), random_problem(seed)
    devices = tuple(sorted(random.sample(range(4), random.choice((1, 2)))))
    holders = []
    for at, holder in enumerate(problem.holders):
        rows = replace(holder.rows.take(slice(0, 2)), quantum=holder.rows.quantum[:2] * 0 + 1)  # type: ignore[arg-type]
        if at == seed % len(problem.holders):
            rows = replace(rows, num_devices=rows.num_devices * 0 + len(devices))
            holders.append(replace(holder, rows=rows, devices=devices))
        else:
            holders.append(replace(holder, rows=replace(rows, num_devices=rows.num_devices % 4 + 1)))
    pool = Pool.of([3, 1] if seed % 2 else [2, 2], CAPACITY * 1.5)
    return Problem(tuple(holders), pool, problem.edges, problem.asynchronous, problem.overlaps)


def test_search_around_pinned_devices_equals_trying_every_set_of_devices() -> None:
    feasible = 0
    for seed in range(80):
        if len(random_problem(seed).holders) == 5 or len(random_problem(seed).pool.capacity_bytes) > 1:
            continue
        problem = pinned_problem(seed)
        found, _ = solve(problem)
        assert (found[0].step_seconds if found else float("inf")) == literal(problem), seed
        feasible += bool(found)
        for plan, (at, holder) in product(found, enumerate(problem.holders)):
            placed = devices_of(problem.pool, problem.holders, plan.placement)
            lies = sorted(device for _, pattern, devices in placed if pattern >> at & 1 for device in devices)
            assert holder.devices in (None, tuple(lies))
            assert len(lies) == holder.rows.num_devices[plan.rows[at]]
    assert feasible > 20
