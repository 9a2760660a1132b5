"""Generated changes of two to six model-stages on nearly full pools, each transition checked by independent code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from nereus.emu.unit import Emu
from nereus.errors import LayoutError
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.dag import Change
from nereus.transition.estimate import LinkRates, op_seconds, transition_seconds
from nereus.transition.feasibility import check_memory, problem_of
from nereus.transition.ops import Transition
from nereus.transition.planning import planned
from nereus.transition.verdicts import Found
from tests.builders import layer_owner
from tests.transition.generated import Instance, generated, usable_bytes
from tests.transition.order_checker import (
    any_timing_peaks,
    assert_exclusive,
    assert_fits_under_any_timing,
    assert_lanes_never_deadlock,
    assert_never_without_an_intact_unit,
    final_bytes,
)

SEEDS = range(5000, 5080)
RATES = LinkRates(wire_bytes_s=25e9, near_bytes_s=200e9, copy_bytes_s=1e12, op_s=0.005)


def usable(instance: Instance) -> float:
    """The capacity of an instance; unlimited where its change has no order at all."""
    try:
        return usable_bytes(instance, next(instance.change.transitions()))
    except LayoutError:
        return float("inf")


def unit_bytes(state: StateSpec, emu: Emu) -> dict[EndpointId, int]:
    """Bytes of a unit: every layer is one tensor whose rows are shared out evenly over TP."""
    tp, pp = emu.layout.tp, emu.layout.pp
    layer_bytes = 4 * state.tensors[0].num_elements
    owners = Counter(layer_owner(layer, state.num_layers, pp) for layer in range(state.num_layers))
    return {endpoint: owners[rank // tp] * layer_bytes // tp for rank, endpoint in enumerate(emu.endpoints)}


def answer(change: Change, instance: Instance, usable_bytes: float) -> tuple[Found, Transition | None]:
    """The verdict of the whole path, and the transition if there is one."""
    try:
        transition, memory = planned(change, instance.standing, usable_bytes, RATES)
    except LayoutError:
        return Found.REFUSED_PROVED, None
    return transition.found, None if memory.violation else transition


ANSWERS = {seed: answer(generated(seed).change, generated(seed), usable(generated(seed))) for seed in SEEDS}


def test_generated_changes_are_of_every_kind() -> None:
    """So that none of the tests below is empty; and no verdict is left to a limit."""
    counts = Counter(found for found, _ in ANSWERS.values())
    assert counts[Found.GREEDY] > 20
    assert counts[Found.RE_CHOSEN] > 5
    assert counts[Found.REFUSED_PROVED] > 2
    assert counts[Found.REFUSED_LIMIT] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_transition_is_safe_under_any_timing(seed: int) -> None:
    instance, (_, transition) = generated(seed), ANSWERS[seed]
    if transition is None:
        return
    problem = problem_of(transition, instance.standing, instance.change.states, usable(instance))
    after = [task.after for task in problem.tasks]
    assert_fits_under_any_timing(problem, after)
    members = [task.members for task in problem.tasks]
    assert_lanes_never_deadlock(members, after, range(len(members)))


@pytest.mark.parametrize("seed", SEEDS)
def test_transition_keeps_exclusive_stages_apart_and_an_intact_unit_of_each(seed: int) -> None:
    instance, (_, transition) = generated(seed), ANSWERS[seed]
    if transition is not None:
        change = instance.change
        assert_exclusive(transition, change.current, change.exclusive)
        assert_never_without_an_intact_unit(transition, [e for emus in change.current.values() for e in emus], seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_transition_leaves_the_bytes_of_the_target_plan(seed: int) -> None:
    """And of inputs that live until the commit, less what changed hands: counted from the units alone."""
    instance, (_, transition) = generated(seed), ANSWERS[seed]
    if transition is None:
        return
    change = instance.change
    released = {site for op in transition.ops for site in op.frees}
    expected: Counter[str] = Counter()
    for stage in {emu.stage for emu in (*instance.standing, *transition.result)}:
        made = {emu.unit: emu for op in transition.ops for emu in op.makes if emu.stage == stage}
        units = [*[e for e in instance.standing if e.stage == stage and e.unit not in made], *made.values()]
        for emu in units:
            for endpoint, size in unit_bytes(change.states[stage], emu).items():
                if (endpoint, emu.unit) not in released:
                    expected[endpoint] += size
    for op in transition.ops:
        for move in op.handovers:
            if move.source not in released:
                expected[move.source.endpoint] -= move.num_bytes
    problem = problem_of(transition, instance.standing, change.states, float("inf"))
    assert {e: size for e, size in final_bytes(problem).items() if size} == {e: s for e, s in expected.items() if s}


@pytest.mark.parametrize("seed", SEEDS[:40])
def test_more_memory_never_turns_a_transition_into_a_refusal(seed: int) -> None:
    instance = generated(seed)
    if ANSWERS[seed][1] is not None:
        assert answer(instance.change, instance, 1.3 * usable(instance))[1] is not None


@pytest.mark.parametrize("seed", SEEDS[:40])
def test_fewer_exclusions_never_turn_a_transition_into_a_refusal(seed: int) -> None:
    """Of the exclusions, those of one model-stage go."""
    instance = generated(seed)
    if ANSWERS[seed][1] is None:
        return
    free = min(instance.change.targets)
    excluded = instance.change.exclusive
    change = replace(instance.change, exclusive=lambda a, b: free not in (a, b) and excluded(a, b))
    assert answer(change, instance, usable(instance))[1] is not None


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_edges_and_order_are_the_same_each_time(seed: int) -> None:
    again = answer(generated(seed).change, generated(seed), usable(generated(seed)))
    assert again == ANSWERS[seed]


@pytest.mark.parametrize("seed", SEEDS[:40])
def test_estimate_is_what_lanes_take_that_keep_the_order_of_dispatch(seed: int) -> None:
    """Without set-up and commit, and with uplinks left out."""
    instance, (_, transition) = generated(seed), ANSWERS[seed]
    if transition is not None:
        node_of = instance.change.node_of
        predicted = transition_seconds(transition, {}, RATES, node_of) - RATES.base_s
        assert predicted == pytest.approx(lane_seconds(transition, instance.change))


def lane_seconds(transition: Transition, change: Change) -> float:
    """Each operation as soon as those before it and those ahead on its devices have ended; held ones last."""
    ends: dict[str, float] = {}
    free: dict[EndpointId, float] = {}
    for op in (*transition.moving, *transition.held):
        start = max([ends[name] for name in op.after] + [free.get(endpoint, 0.0) for endpoint in op.members])
        ends[op.id] = start + op_seconds(op, RATES, change.node_of)
        free.update(dict.fromkeys(op.members, ends[op.id]))
    return max(ends.values(), default=0.0)


def test_peaks_under_any_timing_are_those_of_the_serial_check_where_nothing_runs_together() -> None:
    """One model-stage on one device after the other: the checker against the walk in order."""
    for seed in SEEDS[:20]:
        instance, (_, transition) = generated(seed), ANSWERS[seed]
        if transition is None:
            continue
        problem = problem_of(transition, instance.standing, instance.change.states, float("inf"))
        chained = [{index - 1} if index else set() for index in range(len(problem.tasks))]
        serial = check_memory(transition, instance.standing, instance.change.states, 1e18)
        peaks = any_timing_peaks(problem, chained)
        if not transition.held:
            assert peaks == serial.peak_bytes
