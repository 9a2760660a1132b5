"""An independent check of orders: what a transition may do under any timing, and what a schedule does.

Written from the model (`takes` at the start, `gives` at the end, one task at a time on a device, uplinks shared), with
networkx, and with no code of the ordering.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from random import Random

import networkx as nx

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, Site
from nereus.transition.lanes import Schedule
from nereus.transition.ops import Op, Transition
from nereus.transition.tasks import Problem, Task

After = Sequence[Iterable[int]]


def graph_of(after: After) -> nx.DiGraph:
    """The tasks with an edge from each to those that wait for it."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(after)))
    graph.add_edges_from((before, index) for index, waits in enumerate(after) for before in waits)
    return graph


def any_timing_peaks(problem: Problem, after: After) -> dict[EndpointId, int]:
    """The most that each endpoint can hold, whenever the tasks run: a maximum closure of events, by minimum cut.

    An event is a start, which takes, or an end, which gives. An end needs its start, a start the ends of all before it.
    """
    closed = nx.transitive_closure_dag(graph_of(after))
    users: dict[EndpointId, list[int]] = defaultdict(list)
    for index, task in enumerate(problem.tasks):
        for endpoint in {*task.takes, *task.gives}:
            users[endpoint].append(index)
    known: dict[tuple[object, ...], int] = {}
    peaks = dict(problem.held)
    for endpoint, used_by in users.items():
        events = [(i, problem.tasks[i].takes.get(endpoint, 0), problem.tasks[i].gives.get(endpoint, 0)) for i in used_by]
        if tuple(events) not in known:
            known[tuple(events)] = _most(events, closed)
        peaks[endpoint] = problem.held.get(endpoint, 0) + known[tuple(events)]
    return peaks


def _most(events: list[tuple[int, int, int]], closed: nx.DiGraph) -> int:
    """The largest sum of takes less gives over sets of events that contain all that each of them needs."""
    cut = nx.DiGraph()
    cut.add_nodes_from(("source", "sink"))
    for index, takes, gives in events:
        cut.add_edge("source", ("start", index), capacity=takes)
        cut.add_edge(("end", index), "sink", capacity=gives)
        cut.add_edge(("end", index), ("start", index))
        for before, _, _ in events:
            if closed.has_edge(before, index):
                cut.add_edge(("start", index), ("end", before))
    value, _ = nx.minimum_cut(cut, "source", "sink")
    return sum(takes for _, takes, _ in events) - int(value)


def assert_fits_under_any_timing(problem: Problem, after: After) -> None:
    """Acyclic, and no endpoint ever holds more than is usable."""
    assert nx.is_directed_acyclic_graph(graph_of(after))
    over = {e: peak for e, peak in any_timing_peaks(problem, after).items() if peak > problem.usable_bytes}
    used = {endpoint for task in problem.tasks for endpoint in (*task.takes, *task.gives)}
    assert not over.keys() & used, over


def assert_schedule_holds(problem: Problem, after: After, schedule: Schedule) -> None:
    """Replayed in time: waits are kept, devices take one task at a time, uplinks and memory are never overfull."""
    tasks, starts, small = problem.tasks, schedule.starts, 1e-6
    for index, waits in enumerate(after):
        assert all(starts[index] >= starts[b] + tasks[b].seconds - small for b in waits)
    assert max(start + task.seconds for start, task in zip(starts, tasks, strict=True)) <= schedule.seconds + small
    lanes: dict[EndpointId, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        for member in task.members:
            lanes[member].append(index)
    for of_one in lanes.values():
        in_time = sorted(of_one, key=lambda i: (starts[i], starts[i] + tasks[i].seconds))
        for first, second in pairwise(in_time):
            assert starts[second] >= starts[first] + tasks[first].seconds - small
    events = [(starts[i] + small, 1, i) for i in range(len(tasks))]
    events += [(starts[i] + tasks[i].seconds - small, 0, i) for i in range(len(tasks))]
    held, links = Counter(problem.held), Counter[str]()
    for _, begins, index in sorted(events):
        task = tasks[index]
        for endpoint, size in (task.takes if begins else task.gives).items():
            held[endpoint] += size if begins else -size
            assert not begins or held[endpoint] <= problem.usable_bytes, (index, endpoint)
        for link, share in task.uplinks.items():
            links[link] += share if begins else -share  # type: ignore[assignment]
            assert links[link] <= 1 + small, (index, link)


def assert_lanes_never_deadlock(members: Sequence[Iterable[EndpointId]], after: After, order: Sequence[int]) -> None:
    """Each device keeps the tasks of its lane in one global order: with the waits, no circle."""
    edges = [set(waits) for waits in after]
    last: dict[EndpointId, int] = {}
    for index in order:
        for member in members[index]:
            if member in last:
                edges[index].add(last[member])
            last[member] = index
    assert nx.is_directed_acyclic_graph(graph_of(edges))


def assert_exclusive(
    transition: Transition, current: Mapping[str, Sequence[Emu]], exclusive: Callable[[str, str], bool]
) -> None:
    """Whoever acquires an endpoint waits, directly or not, for every release of it by a stage that excludes it."""
    number = {op.id: index for index, op in enumerate(transition.ops)}
    closed = nx.transitive_closure_dag(graph_of([[number[name] for name in op.after] for op in transition.ops]))
    owner = {(stage, e) for stage, emus in current.items() for emu in emus for e in emu.endpoints}
    for op in transition.ops:
        for endpoint in {e for emu in op.makes for e in emu.endpoints}:
            for stage in current:
                if stage == op.stage or not exclusive(stage, op.stage) or (stage, endpoint) not in owner:
                    continue
                releases = [
                    other
                    for other in transition.ops
                    if other.stage == stage and any(site.endpoint == endpoint for site in other.frees)
                ]
                assert releases, (op.id, endpoint)
                assert all(closed.has_edge(number[r.id], number[op.id]) for r in releases), (op.id, endpoint)


def assert_never_without_an_intact_unit(transition: Transition, current: Iterable[Emu], seed: int) -> None:
    """In a random order that the DAG admits, each stage has a unit of which nothing was released, at every moment.

    A stream takes its unit apart tensor by tensor, and holds each of them on one side or the other: it counts as one moment.
    """
    random, ops = Random(seed), {op.id: op for op in transition.ops}
    whole: dict[str, list[Emu]] = defaultdict(list)
    for emu in current:
        whole[emu.stage].append(emu)
    freed: set[Site] = set()
    done: set[str] = set()
    while len(done) < len(ops):
        op: Op = ops[random.choice([name for name in ops if name not in done and done.issuperset(ops[name].after)])]
        whole[op.stage] += op.makes
        freed.update(op.frees)
        done.add(op.id)
        intact = [emu for emu in whole[op.stage] if not any(Site(e, emu.unit) in freed for e in emu.endpoints)]
        assert intact, op.id


def final_bytes(problem: Problem) -> Counter[EndpointId]:
    """What each endpoint holds after all tasks."""
    held = Counter(problem.held)
    for task in problem.tasks:
        held.update(task.takes)
        held.subtract(task.gives)
    return held


def make_task(
    stage: str, *, takes: Mapping[str, int] | None = None, gives: Mapping[str, int] | None = None, after: Iterable[int] = ()
) -> Task:
    """A task of one second on the devices whose memory it uses; one that takes nothing is a release."""
    members = tuple(sorted({*(takes or {}), *(gives or {})}))
    return Task(stage, not takes, members, frozenset(after), dict(takes or {}), dict(gives or {}), 1.0)
