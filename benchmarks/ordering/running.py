"""One instance: what the rule says alone, what the whole ordering says and how long it takes, and what solvers say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from benchmarks.ordering.model import Model, has_circle, model_of
from benchmarks.ordering.solved import Solved
from nereus.errors import LayoutError
from nereus.transition.arranging import quickest
from nereus.transition.feasibility import Choice, arranged, chosen, problem_of
from nereus.transition.lanes import Schedule
from nereus.transition.ops import Transition
from nereus.transition.ordering import Blocked, paper_rule, place
from nereus.transition.planning import MAX_FITTED
from nereus.transition.searching import ordered
from nereus.transition.streaming import streamed
from nereus.transition.tasks import binding
from nereus.transition.verdicts import Found
from nereus.transition.ways import Way
from tests.transition.generated import Instance, first_transition, usable_bytes
from tests.transition.order_checker import (
    assert_exclusive,
    assert_fits_under_any_timing,
    assert_lanes_never_deadlock,
    assert_never_without_an_intact_unit,
    assert_schedule_holds,
)

Solver = Callable[[Model, float], Solved]

MOST_OPERATIONS = {"cpsat": 250, "scip": 45}
"""Of a model that a solver is given: above that it finds nothing within seconds, or spends them on building the model."""


@dataclass(frozen=True)
class Answer:
    """All that is known of one instance."""

    seed: int
    devices: int
    operations: int
    found: Found
    greedy_alone: bool
    """Whether the paper's rule orders the first choice of primitives."""
    order_seconds: float
    """Processor time from compiled operations to an order with edges and a schedule."""
    whole_seconds: float
    """Processor time from plans to it, compiling and streams included."""
    circle: bool = False
    """Whether it is refused since exclusive model-stages wait for one another in a circle."""
    unsafe: str | None = None
    """What the checker found."""
    makespan: float | None = None
    held: int = 0
    """Destroys that wait for the proof, since nothing waits for them."""
    destroys: int = 0
    solved: Mapping[str, tuple[Solved, float]] = field(default_factory=dict)
    """By solver: what it says of the same operations, and its processor time."""
    first_solved: Mapping[str, Solved] = field(default_factory=dict)
    """Of a refusal: what a solver says of the first choice of primitives, before any became a stream."""

    @property
    def best_makespan(self) -> float | None:
        """Of the solvers."""
        return min((s.seconds for s, _ in self.solved.values() if s.seconds is not None), default=None)

    @property
    def solver_seconds(self) -> float | None:
        """Processor time of the faster solver."""
        return min((seconds for _, seconds in self.solved.values()), default=None)

    @property
    def only_solver(self) -> bool:
        """Whether a solver has an order and we refuse."""
        said = [*(solved for solved, _ in self.solved.values()), *self.first_solved.values()]
        return self.found.is_refusal and any(solved.seconds is not None for solved in said)


def answer(instance: Instance, solvers: Mapping[str, Solver], limit_s: float) -> Answer:
    """Order an instance, check it, and let the solvers have it."""
    began = time.process_time()
    try:
        first = first_transition(instance)
    except LayoutError:
        return _circular(instance, time.process_time() - began)
    usable = usable_bytes(instance, first)
    base = problem_of(first, instance.standing, instance.change.states, usable)
    alone = not isinstance(place(base, binding(base), paper_rule), Blocked)
    began = time.process_time()
    choice = _chosen(instance, usable)
    whole = time.process_time() - began
    model = model_of(choice.transition, choice.problem, instance.change)
    took, schedule, after = _ordered(model)
    whole += took if schedule else 0.0
    refused = choice.outcome.found.is_refusal
    final = choice.transition if refused else arranged(choice)
    return Answer(
        seed=instance.seed,
        devices=instance.num_devices,
        operations=len(model.problem.tasks),
        found=choice.outcome.found if refused else final.found,
        greedy_alone=alone and first.found is Found.GREEDY,
        order_seconds=took,
        whole_seconds=whole,
        unsafe=None if schedule is None else _unsafe(instance, final, model, after, schedule),
        makespan=schedule.seconds if schedule else None,
        held=len(final.held),
        destroys=sum(op.is_release for op in final.ops),
        solved=_solved(model, solvers, limit_s),
        first_solved={
            name: solved for name, (solved, _) in _solved(model_of(first, base, instance.change), solvers, limit_s).items()
        }
        if refused
        else {},
    )


def _chosen(instance: Instance, usable: int) -> Choice:
    """As `nereus.transition.planning.planned`, with the streams that the instance starts with."""
    change, refused = instance.change, None
    for transition in islice(change.transitions(), MAX_FITTED):
        started = streamed(transition, instance.streams, instance.standing, change.states)
        choice = chosen(started, instance.standing, change.states, usable)
        if choice.outcome.blocked is None:
            return choice
        refused = refused or choice
    assert refused is not None
    return refused


def _ordered(model: Model, repeats: int = 3) -> tuple[float, Schedule | None, tuple[frozenset[int], ...]]:
    """Median processor time of ordering a problem, and the schedule, if there is one."""
    taken, schedule, after = [], None, tuple[frozenset[int], ...]()
    for _ in range(repeats):
        began = time.process_time()
        outcome = ordered(model.problem)
        if outcome.blocked is None:
            after, schedule = quickest(model.problem, outcome.order)
        taken.append(time.process_time() - began)
    return median(taken), schedule, after


def _unsafe(
    instance: Instance, transition: Transition, model: Model, after: tuple[frozenset[int], ...], schedule: Schedule
) -> str | None:
    """What independent code finds wrong: cycles, memory under any timing, deadlocks, owners, lost state, the replay."""
    change = instance.change
    try:
        assert_fits_under_any_timing(model.problem, after)
        assert_lanes_never_deadlock([task.members for task in model.problem.tasks], after, schedule.order)
        assert_schedule_holds(model.problem, after, schedule)
        if transition.found is not Found.DETOUR:
            assert_exclusive(transition, change.current, change.exclusive)
        assert_never_without_an_intact_unit(transition, [e for emus in change.current.values() for e in emus], instance.seed)
    except AssertionError as error:
        return f"seed {instance.seed}: {error}"
    return None


def _solved(model: Model, solvers: Mapping[str, Solver], limit_s: float) -> dict[str, tuple[Solved, float]]:
    found: dict[str, tuple[Solved, float]] = {}
    for name, solve in solvers.items():
        if len(model.problem.tasks) <= MOST_OPERATIONS[name]:
            began = time.process_time()
            solved = solve(model, limit_s)
            found[name] = solved, time.process_time() - began
    return found


def _circular(instance: Instance, seconds: float) -> Answer:
    """Every way waits in a circle: independent code has to find one in the primitives, fused and one by one."""
    change = instance.change
    drafts = [change.draft(Way()), change.draft(Way(unfused=frozenset(change.targets)))]
    proved = all(has_circle(draft.planned, change) for draft in drafts)
    return Answer(
        seed=instance.seed,
        devices=instance.num_devices,
        operations=sum(len(movements) for movements in drafts[-1].planned.values()),
        found=Found.REFUSED_PROVED if proved else Found.REFUSED_LIMIT,
        greedy_alone=False,
        order_seconds=seconds,
        whole_seconds=seconds,
        circle=True,
    )
