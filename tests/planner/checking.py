"""Is a plan that the search returned what it says it is? Checked on its placement alone, by neither search nor oracle."""

from __future__ import annotations

from collections import Counter, defaultdict

from nereus.planner.found import Solution
from nereus.planner.problem import Problem, Stage


def assert_holds(problem: Problem, solution: Solution) -> None:
    """Devices, quanta, kinds, memory, disjointness and L_step of a solution, read off where it puts what."""
    used: Counter[int] = Counter()
    sharing: dict[int, set[int]] = defaultdict(set)
    rows = [holder.rows.take(holder.rows.index == row) for holder, row in zip(problem.holders, solution.rows, strict=True)]
    assert [len(row) for row in rows] == [1] * len(rows)
    assert len(solution.placement) == len(problem.pool.nodes)
    for node, state in zip(problem.pool.nodes, solution.placement, strict=True):
        assert sum(count for _, count in state) == len(node.devices)
        here: Counter[int] = Counter()
        offloaded = 0.0
        for pattern, count in state:
            assert count > 0
            hosted = [i for i in range(len(rows)) if pattern >> i & 1]
            full = sum(rows[i].resident_bytes[0] for i in hosted) + max((rows[i].active_bytes[0] for i in hosted), default=0)
            assert full <= problem.pool.capacity_bytes[node.kind]
            for i in hosted:
                assert rows[i].kind[0] == node.kind
                here[i] += count
                offloaded += count * rows[i].host_bytes[0]
                sharing[i] |= set(hosted) - {i}
        assert offloaded <= node.host_bytes
        for i, count in here.items():
            assert count % rows[i].quantum[0] == 0
        used += here
    assert all(used[i] == row.num_devices[0] for i, row in enumerate(rows))
    assert solution.shape == tuple((row.layout[0], row.num_devices[0]) for row in rows)
    generating = {i for i, holder in enumerate(problem.holders) if Stage.GENERATION in holder.stages}
    if problem.asynchronous:
        assert not any((i in generating) != (j in generating) for i in sharing for j in sharing[i])
    assert solution.step_seconds == _seconds(problem, rows, sharing)


def _seconds(problem: Problem, rows: list, sharing: dict[int, set[int]]) -> float:  # type: ignore[type-arg]
    """L_step: of each stage the longest run of holders that wait for each other, which at most four holders determine."""
    total, generation = 0.0, 0.0
    for stage in problem.stages:
        own = {
            i: float(row.seconds[holder.stages.index(stage), 0])
            for i, (holder, row) in enumerate(zip(problem.holders, rows, strict=True))
            if stage in holder.stages
        }
        seconds = max(_runs(sorted(own), own, sharing)) if problem.overlaps else sum(own.values())
        if problem.asynchronous and stage is Stage.GENERATION:
            generation = seconds
        else:
            total += seconds
    edges = sum(float(e.seconds[rows[e.source].layout[0], rows[e.target].layout[0]]) for e in problem.edges)
    return max(total, generation) + edges


def _runs(members: list[int], own: dict[int, float], sharing: dict[int, set[int]]) -> list[float]:
    """Seconds of every set of holders that pairwise share devices."""
    if not members:
        return [0.0]
    first, rest = members[0], members[1:]
    with_first = _runs([i for i in rest if i in sharing[first]], own, sharing)
    return _runs(rest, own, sharing) + [own[first] + seconds for seconds in with_first]
