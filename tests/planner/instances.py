"""Random plan-search problems of two generators: roofline-like ones and tables of plain numbers; they find different bugs.

All numbers are whole, so that sums are exact and equal plans compare equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np

from nereus.planner.problem import Edge, Holder, Pool, Problem, Rows, Stage

WORKFLOWS: dict[int, list[tuple[tuple[str, tuple[Stage, ...]], ...]]] = {
    2: [(("gen", (Stage.GENERATION,)), ("actor", (Stage.TRAINING,)))],
    3: [(("gen", (Stage.GENERATION,)), ("ref", (Stage.INFERENCE,)), ("actor", (Stage.TRAINING,)))],
    4: [
        (
            ("gen", (Stage.GENERATION,)),
            ("ref", (Stage.INFERENCE,)),
            ("rew", (Stage.INFERENCE,)),
            ("actor", (Stage.TRAINING,)),
        ),
        (
            ("gen", (Stage.GENERATION,)),
            ("ref", (Stage.INFERENCE,)),
            ("actor", (Stage.TRAINING,)),
            ("critic", (Stage.INFERENCE, Stage.TRAINING)),
        ),
    ],
    5: [
        (
            ("gen", (Stage.GENERATION,)),
            ("ref", (Stage.INFERENCE,)),
            ("rew", (Stage.INFERENCE,)),
            ("actor", (Stage.TRAINING,)),
            ("critic", (Stage.INFERENCE, Stage.TRAINING)),
        )
    ],
}
"""ReMax and GRPO with fewer models, and PPO with six model-stages on five holders."""

POOLS = ([8], [4, 4], [8, 4], [4, 4, 4], [8, 3], [4, 4, 2], [6, 6], [8, 8], [4, 4, 4, 4], [5, 3])
"""Devices per node, up to 16: even and uneven."""

CAPACITY = 1000
LAYOUTS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2))
"""(tp, pp) by layout class."""

SIZES = {"gen": 10, "actor": 20, "critic": 16}
"""Work and memory relative to a reference or reward model of 5."""


@dataclass(frozen=True)
class Row:
    """One candidate in plain numbers."""

    seconds: tuple[int, ...]
    n: int
    resident: int
    active: int
    q: int
    layout: int
    kind: int
    host: int = 0


def random_problem(seed: int) -> Problem:
    """Two to five holders on up to 16 devices: tight or not, mixed kinds, quanta up to 8, edges, twins, async."""
    random = Random(seed)
    num_holders = (2, 3, 4, 4, 5)[seed % 5]
    workflow = random.choice(WORKFLOWS[num_holders])
    sizes = random.choice(POOLS[:7] if num_holders == 5 else POOLS)
    mixed = random.random() < 0.15 and len(sizes) > 1
    kinds = [int(mixed and at == len(sizes) - 1) for at in range(len(sizes))]
    pool = Pool.of(sizes, [CAPACITY, CAPACITY * 7 // 10] if mixed else [CAPACITY], kinds)
    tight = random.choice((0.3, 0.6, 1.0, 1.6))
    make = _table_row if seed % 2 else _roofline_row
    holders = []
    for name, stages in workflow:
        count = random.randint(3, 5 if num_holders == 5 else 8)
        scale = SIZES.get(name, 5) * random.uniform(0.5, 1.5)
        kind = [int(mixed and random.random() < 0.3) for _ in range(count)]
        rows = [make(random, sum(sizes), len(stages), scale, tight, k) for k in kind]
        holders.append(Holder(name, stages, table(rows)))
    if num_holders >= 4 and [t.name for t in holders].count("rew") and seed % 3 == 0:
        holders[2] = replace(holders[1], name="rew")
    overlaps = random.random() > 0.15
    edges = (_edge(random, holders),) if random.random() < 0.5 else ()
    return Problem(tuple(holders), pool, edges, num_holders > 2 and random.random() < 0.3, overlaps)


def table(rows: list[Row]) -> Rows:
    """Rows of the search from plain ones."""
    seconds = np.array([row.seconds for row in rows], np.float64).T
    columns = np.array([(r.n, r.resident, r.active, r.q, r.layout, r.kind, r.host) for r in rows]).T
    return Rows.of(seconds, *columns)


def random_offloads(seed: int) -> Problem:
    """A random problem on tight devices in which some candidates can also keep part of their state on the host, slower."""
    random, problem = Random(seed), random_problem(seed)
    holders = []
    for holder in problem.holders:
        rows = holder.rows.take(np.arange(min(len(holder.rows), {2: 4, 3: 4, 4: 2, 5: 1}[len(problem.holders)])))
        share = random.choice((0.5, 0.9))
        offloaded = np.round(rows.resident_bytes * share)
        which = np.array([random.random() < 0.8 for _ in range(len(rows))])
        slower = rows.seconds + random.randint(1, 9)
        moved = replace(rows, seconds=slower, resident_bytes=rows.resident_bytes - offloaded, host_bytes=offloaded).take(
            which
        )
        columns = [(getattr(rows, name), getattr(moved, name)) for name in COLUMNS]
        holders.append(
            replace(
                holder, rows=Rows.of(np.hstack([rows.seconds, moved.seconds]), *(np.concatenate(pair) for pair in columns))
            )
        )
    room = random.choice((0.3, 1.0, 3.0))
    hosts = [float(round(CAPACITY * room * len(node.devices) * random.uniform(0.1, 0.6))) for node in problem.pool.nodes]
    nodes = tuple(replace(node, host_bytes=host) for node, host in zip(problem.pool.nodes, hosts, strict=True))
    capacities = tuple(capacity * random.choice((0.5, 0.8)) for capacity in problem.pool.capacity_bytes)
    problem = Problem(tuple(holders), problem.pool, problem.edges, problem.asynchronous, problem.overlaps)
    return replaced(problem, Pool(nodes, capacities))


def random_kinds(seed: int) -> Problem:
    """A random problem on nodes of two or three kinds, each with rows of every holder."""
    random, problem = Random(seed), random_problem(seed)
    count = random.choice((2, 2, 3))
    kinds = [random.randrange(count) for _ in problem.pool.nodes]
    sizes = [len(node.devices) for node in problem.pool.nodes]
    pool = Pool.of(sizes, [CAPACITY * random.choice((0.6, 1.0, 1.5)) for _ in range(count)], kinds)
    of_rows = [np.array([random.randrange(count) for _ in range(len(holder.rows))]) for holder in problem.holders]
    tables = (replace(holder.rows, kind=kind) for holder, kind in zip(problem.holders, of_rows, strict=True))
    holders = tuple(replace(holder, rows=rows) for holder, rows in zip(problem.holders, tables, strict=True))
    return Problem(holders, pool, problem.edges, problem.asynchronous, problem.overlaps)


COLUMNS = ("num_devices", "resident_bytes", "active_bytes", "quantum", "layout", "kind", "host_bytes")


def with_hosts(problem: Problem, factor: float) -> Problem:
    """The same problem on hosts with more or less memory."""
    nodes = tuple(replace(node, host_bytes=node.host_bytes * factor) for node in problem.pool.nodes)
    return replaced(problem, Pool(nodes, problem.pool.capacity_bytes))


def relabelled(problem: Problem, seed: int) -> Problem:
    """The same problem with its nodes in another order and other names for its devices."""
    random = Random(seed)
    nodes = list(problem.pool.nodes)
    random.shuffle(nodes)
    names = random.sample(range(1000), problem.pool.num_devices)
    named = [replace(node, devices=tuple(names.pop() for _ in node.devices)) for node in nodes]
    return replaced(problem, pool=Pool(tuple(named), problem.pool.capacity_bytes))


def with_nodes(problem: Problem, sizes: list[int], kinds: list[int]) -> Problem:
    """The same problem on other nodes."""
    return replaced(problem, pool=Pool.of(sizes, problem.pool.capacity_bytes, kinds))


def with_memory(problem: Problem, factor: float) -> Problem:
    """The same problem on devices with more or less memory."""
    capacities = tuple(capacity * factor for capacity in problem.pool.capacity_bytes)
    return replaced(problem, pool=Pool(problem.pool.nodes, capacities))


def replaced(problem: Problem, pool: Pool) -> Problem:
    return Problem(problem.holders, pool, problem.edges, problem.asynchronous, problem.overlaps)


def _table_row(random: Random, devices: int, roles: int, scale: float, tight: float, kind: int) -> Row:
    q = random.choice((1, 2, 4))
    n = max(q, random.randint(1, devices) // q * q)
    resident, active = (round(CAPACITY * tight * random.uniform(0.05, most)) for most in (0.6, 0.5))
    return Row(tuple(random.randint(8, 80) for _ in range(roles)), n, resident, active, q, random.randrange(6), kind)


def _roofline_row(random: Random, devices: int, roles: int, scale: float, tight: float, kind: int) -> Row:
    layout = random.randrange(6)
    tp, pp = LAYOUTS[layout]
    dp, recompute = random.choice((1, 2, 3, 4, 6, 8)), random.random() < 0.5
    q = random.choice((tp, tp * pp))
    n = tp * pp * dp
    seconds = 400 * scale / n * (1 + 0.15 * (tp - 1) / tp + 0.1 * (pp - 1)) * (1.3 if recompute else 1)
    seconds *= 1.0 if q == tp * pp else 1.07
    share = CAPACITY * tight * scale / 10 / (tp * pp) * 0.5
    return Row(
        tuple(round(seconds * (0.4 if roles > 1 and role == 0 else 1)) for role in range(roles)),
        n,
        round(share),
        round(share * (0.5 if recompute else 1)),
        q,
        layout,
        kind,
    )


def _edge(random: Random, holders: list[Holder]) -> Edge:
    actor = [holder.name for holder in holders].index("actor")
    seconds = [[random.randint(1, 12 if a != b else 2) for a in range(6)] for b in range(6)]
    return Edge(0, actor, np.array(seconds, np.float64))
