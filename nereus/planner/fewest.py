"""Ties: of equally fast plans the one on the fewest devices, for plans that nothing runs yet.

Devices are left out from the end of the pool, so that what is free is free in one piece. A placement on some devices is
one on more of them too: whether a number suffices is monotone, and a few searches below the known L_step find the least.
"""

from __future__ import annotations

from dataclasses import replace

from nereus.planner.explain import TIE
from nereus.planner.found import Solution
from nereus.planner.placement import Placement
from nereus.planner.problem import Node, Pool, Problem
from nereus.planner.solve import solve


def on_fewest_devices(problem: Problem, best: Solution) -> Solution:
    """A plan as fast as the best one, on the fewest of the first devices of the pool on which there is one."""
    settled = [device for holder in problem.holders for device in holder.devices or ()]
    order = [device for node in problem.pool.nodes for device in node.devices]
    least = max((order.index(device) + 1 for device in settled), default=1)
    chosen, enough, step = best, _num_used(best.placement), 1
    if enough < problem.pool.num_devices:
        packed = _on_first(problem, max(least, enough), best)
        if packed is None:
            return best
        chosen = packed
    # Most plans need all that they have, so the first steps down are small.
    while enough > least:
        tried = max(least, enough - step)
        found = _on_first(problem, tried, best)
        if found is not None:
            chosen, enough, step = found, tried, 2 * step
        elif step == 1:
            break
        else:
            least, step = tried + 1, max(1, (enough - tried) // 2)
    return chosen


def _on_first(problem: Problem, count: int, best: Solution) -> Solution | None:
    """A plan as fast as the best one on the first so many devices, told as one of the whole pool; None without any."""
    nodes: list[Node] = []
    for node in problem.pool.nodes:
        taken = min(count - sum(len(n.devices) for n in nodes), len(node.devices))
        if taken:
            nodes.append(replace(node, devices=node.devices[:taken]))
    first = Pool(tuple(nodes), problem.pool.capacity_bytes)
    smaller = Problem(problem.holders, first, problem.edges, problem.asynchronous, problem.overlaps)
    beaten = replace(best, step_seconds=best.step_seconds * (1 + TIE))
    (found,), _ = solve(smaller, known=(beaten,))
    return None if found is beaten else replace(found, placement=_widened(found.placement, problem.pool))


def _widened(placement: Placement, pool: Pool) -> Placement:
    """The placement with the devices that were left out idle."""
    states = [*placement, *((),) * (len(pool.nodes) - len(placement))]
    widened = []
    for node, state in zip(pool.nodes, states, strict=True):
        hosts = dict(state)
        idle = len(node.devices) - sum(hosts.values())
        if idle:
            hosts[0] = hosts.get(0, 0) + idle
        widened.append(tuple(sorted(hosts.items())))
    return tuple(widened)


def _num_used(placement: Placement) -> int:
    return sum(count for state in placement for pattern, count in state if pattern)
