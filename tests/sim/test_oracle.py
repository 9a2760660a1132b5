"""The oracle finds what trying every history of plans finds, and no policy gets further than it in the same world."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from nereus.emu.plan import Plan, StagePlan
from nereus.layout.layout import Layout
from nereus.sim import oracle
from nereus.sim.oracle import Reached, Stretch, advance
from nereus.sim.policies import simulate
from nereus.sim.responses import Lengths
from tests.sim.tiny import inputs


def plan(*devices: int) -> Plan:
    return Plan(0, {"actor_training": StagePlan("actor_training", Layout(), len(devices), devices)})


PLANS = {"one": plan(0), "two": plan(0, 1), "four": plan(0, 1, 2, 3)}
SECONDS = {1: 10.0, 2: 6.0, 4: 4.0}
STRETCHES = (
    Stretch(0.0, 35.0, (0, 1, 2, 3)),
    Stretch(35.0, 50.0, (0, 1)),
    Stretch(50.0, 57.0, (0, 1, 2, 3)),
    Stretch(57.0, 140.0, (0, 1, 2, 3)),
)


@dataclass
class Steps:
    seconds: float


@dataclass
class World:
    """As much of a scenario as the oracle asks for: steps get longer, and four devices run out of memory after a while."""

    move_s: float
    max_steps: int = 10**9
    capacity_bytes: int = 100
    curve: Any = field(init=False)
    truth: Any = field(init=False)
    outline: Any = field(init=False)

    def __post_init__(self) -> None:
        self.curve = self.truth = self
        self.outline = type("Outline", (), {"workload": type("Workload", (), {"global_batch": 8})})

    def at(self, step: int) -> Lengths:
        return Lengths(100.0 + step, 200.0 + step)

    def step(self, plan: Plan, lengths: Lengths) -> Steps:
        return Steps(SECONDS[len(plan.devices)] * lengths.mean / 100)

    def peak_bytes(self, plan: Plan, lengths: Lengths) -> dict[int, int]:
        limit = 112 if len(plan.devices) == 4 else 10**9
        return {0: 50 if lengths.mean < limit else 101}


def by_brute_force(world: World) -> float:
    """Steps of the best history, step by step, over all plans in all stretches."""
    best = 0.0
    for choice in product(PLANS.values(), repeat=len(STRETCHES)):
        steps, before = 0.0, None
        for stretch, chosen in zip(STRETCHES, choice, strict=True):
            if not chosen.devices <= set(stretch.usable):
                break
            left = stretch.end_s - stretch.begin_s - (world.move_s if before not in (None, chosen) else 0.0)
            while left > 1e-12:
                lengths = world.at(int(steps) + 1)
                if world.peak_bytes(chosen, lengths)[0] > world.capacity_bytes:
                    break
                share = min(int(steps) + 1 - steps, left / world.step(chosen, lengths).seconds)
                steps, left = steps + share, left - share * world.step(chosen, lengths).seconds
            before = chosen
        else:
            best = max(best, steps)
    return best


@pytest.mark.parametrize("move_s", [0.0, 1.0, 4.0, 9.0, 30.0])
def test_dynamic_program_finds_the_best_history(move_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    world: Any = World(move_s)
    monkeypatch.setattr(oracle, "least_move_s", lambda _, before, after: 0.0 if before == after else move_s)
    reached = [Reached(0.0, 0.0, None)]
    for stretch in STRETCHES:
        there = [chosen for chosen in PLANS.values() if chosen.devices <= set(stretch.usable)]
        reached = advance(world, stretch, reached, there)
    assert max(one.steps for one in reached) == pytest.approx(by_brute_force(world))


@pytest.mark.parametrize("policy", ["nereus", "static-per-budget", "static-smallest", "restart", "replan-always"])
def test_no_policy_generates_more_than_the_oracle_but_for_noise(policy: str) -> None:
    scenario = inputs(((0.0, 2), (60.0, 4), (180.0, 2), (300.0, 4), (420.0, 4)), seed=3).scenario()
    assert simulate(scenario, policy).throughput <= 1.05 * simulate(scenario, "oracle").throughput
