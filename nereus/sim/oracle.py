"""The best that could have been done: a dynamic program over the stretches of a trace and the plans worth having in each.

    stretches between changes of the pool, plans on each (swept on the world) -> steps completed by the end of each stretch

It knows the whole trace and the world's own seconds without noise, and moves state at no less than the links allow: what it
finds is at least what any policy can reach. More steps by a given time are never worse, so one number per plan is enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.layout.catalog import StateSpec
from nereus.sim.outcome import Cause, Ledger, Outcome, outcome
from nereus.sim.scenario import Scenario
from nereus.sim.sweep import Sweep
from nereus.spec.hardware import LinkClass

PLANS = 6
"""Plans of each stretch that are looked at, beside those that were in force before and still can be."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time in which the pool stays as it is."""

    begin_s: float
    end_s: float
    usable: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a history of plans has come."""

    steps: float
    """Completed, the running one in part."""
    tokens: float
    plan: Plan | None
    moved_s: float = 0.0
    ended_s: float = float("inf")
    """When the last step that was wanted was done."""


def stretches(scenario: Scenario) -> tuple[Stretch, ...]:
    """Of the whole trace. Devices on notice can be used to their end: the oracle knows it."""
    timeline = scenario.timeline
    times = sorted({0.0, *(event.time_s for event in timeline.events if event.time_s < timeline.duration_s)})
    found = [Stretch(a, b, timeline.there(a)) for a, b in pairwise([*times, timeline.duration_s])]
    merged: list[Stretch] = []
    for one in found:
        if merged and merged[-1].usable == one.usable:
            merged[-1] = Stretch(merged[-1].begin_s, one.end_s, one.usable)
        else:
            merged.append(one)
    return tuple(merged)


def oracle(scenario: Scenario) -> Outcome:
    """Steps and tokens of the best history."""
    sweep = Sweep(scenario)
    reached = [Reached(0.0, 0.0, None)]
    for stretch in stretches(scenario):
        furthest = max(one.steps for one in reached)
        lengths = scenario.curve.at(int(furthest) + 1)
        plans = list(sweep.plans(stretch.usable, lengths)[:PLANS])
        reached = advance(scenario, stretch, reached, plans)
        if max(one.steps for one in reached) >= scenario.max_steps:
            break
    return _outcome(scenario, min(reached, key=_rank))


def advance(scenario: Scenario, stretch: Stretch, reached: Sequence[Reached], plans: Sequence[Plan]) -> list[Reached]:
    """One stretch further: for every plan that it may end with, the history that has come furthest."""
    found: dict[str, Reached] = {}
    for before in reached:
        kept = [before.plan] if before.plan and before.plan.devices <= set(stretch.usable) else []
        for plan in [*kept, *plans]:
            after = _run(scenario, stretch, before, plan)
            key = str(sorted((name, str(stage), stage.devices) for name, stage in plan.stages.items()))
            if key not in found or _rank(after) < _rank(found[key]):
                found[key] = after
    return sorted(found.values(), key=_rank)[:PLANS] or [min(reached, key=_rank)]


def _rank(reached: Reached) -> tuple[float, float]:
    """The furthest first; of those that are through, who was so first."""
    return -reached.steps, reached.ended_s


def _run(scenario: Scenario, stretch: Stretch, before: Reached, plan: Plan) -> Reached:
    """Move to a plan and run steps on it until the stretch ends."""
    moving = least_move_s(scenario, before.plan, plan) if before.plan else 0.0
    left = stretch.end_s - stretch.begin_s - moving
    steps, tokens = before.steps, before.tokens
    batch = scenario.outline.workload.global_batch
    while left > 0 and steps < scenario.max_steps:
        lengths = scenario.curve.at(int(steps) + 1)
        if max(scenario.truth.peak_bytes(plan, lengths).values()) > scenario.capacity_bytes:
            break
        seconds = scenario.truth.step(plan, lengths).seconds
        whole, share = int(steps) + 1, left / seconds
        if share >= whole - steps:
            share = whole - steps
            steps, tokens, left = float(whole), tokens + share * batch * lengths.mean, left - share * seconds
        else:
            steps, tokens, left = steps + share, tokens + share * batch * lengths.mean, 0.0
    ended = stretch.end_s - left if steps >= scenario.max_steps else float("inf")
    return Reached(steps, tokens, plan, before.moved_s + moving, ended)


def least_move_s(scenario: Scenario, before: Plan, after: Plan) -> float:
    """No transition between two plans takes less: every device receives what it cannot hold yet, at the speed of its links.

    A device that had a part of a model-stage is taken to hold as much of the new part as it had bytes of the old one.
    """
    if before == after:
        return 0.0
    missing: defaultdict[DeviceId, float] = defaultdict(float)
    for name, plan in after.stages.items():
        state, old = scenario.states[name], before.stages.get(name)
        held = _held(state, old) if old else {}
        for device, size in _held(state, plan).items():
            missing[device] += max(size - held.get(device, 0), 0)
    fastest = (scenario.truth.move_seconds(size, LinkClass.NODE, device) for device, size in missing.items() if size)
    return max(fastest, default=0.0)


def _held(state: StateSpec, plan: StagePlan) -> Mapping[DeviceId, int]:
    return {
        device: state.shard_bytes(plan.layout, rank, optimizer=plan.optimizer(index))
        for index, group in enumerate(plan.groups)
        for rank, device in enumerate(group)
    }


def _outcome(scenario: Scenario, best: Reached) -> Outcome:
    ledger = Ledger()
    duration = min(best.ended_s, scenario.duration_s)
    ledger.spend(0.0, duration - best.moved_s, Cause.STEPS, "the best history")
    ledger.spend(duration - best.moved_s, duration, Cause.TRANSITION, "the best history")
    ledger.steps = [(duration / max(best.steps, 1e-9), best.tokens / max(int(best.steps), 1))] * int(best.steps)
    return outcome("oracle", ledger, duration, None)
