"""Tempting simplifications of the search, each switched on alone: all of them lose optima (planner notes, pitfalls).

They replace one part of the search by a simpler one, so that a test can show that the suite would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from nereus.planner import branch, certificate, frontier, pairs, placing, solve
from nereus.planner.overlap import Pair
from nereus.planner.placement import Item, Moves, Placement, Site, fill
from nereus.planner.problem import Bools, Floats, Ints, Problem, Rows

Simplify = Callable[[pytest.MonkeyPatch], None]


def memory_of_all_on_every_device(patch: pytest.MonkeyPatch) -> None:
    """A plan fits only if all holders fit on one device together."""
    place = placing.Placing.place

    def strict(self: placing.Placing, apart: frozenset[Pair], needs: certificate.Needs, kinds: Ints) -> Placement | None:
        full = needs.resident_bytes.sum() + needs.active_bytes.max()
        return place(self, apart, needs, kinds) if full <= min(self.problem.pool.capacity_bytes) else None

    patch.setattr(placing.Placing, "place", strict)


def _blind(*columns: str) -> Simplify:
    """Dominance that doesn't look at some columns."""

    def simplify(patch: pytest.MonkeyPatch) -> None:
        over = frontier.Dominance.over

        def blind_over(self: frontier.Dominance, better: Ints, worse: Ints) -> Bools:
            seen = self.rows
            self.rows = replace(seen, **{name: getattr(seen, name) * 0 for name in columns})
            holds = over(self, better, worse)
            self.rows = seen
            return holds

        patch.setattr(frontier.Dominance, "over", blind_over)

    return simplify


def dominance_blind_to_edges(patch: pytest.MonkeyPatch) -> None:
    """Rows compared by latency where the weight sync differs."""
    for module in (frontier, pairs):
        patch.setattr(module, "dearer", lambda problem, holder, tables: None)


def latency_always_counts_in_full(patch: pytest.MonkeyPatch) -> None:
    """A dearer weight sync paid for by latency that may hide behind another holder."""
    patch.setattr(frontier, "_counts_in_full", lambda problem, holder: True)


def greedy_placement(patch: pytest.MonkeyPatch) -> None:
    """One attempt per holder, no branching, no integer program."""

    def first_only(items: Sequence[Item], groups: Mapping[Site, int], allowed: Sequence[bool]) -> Moves | None:
        return fill(items, groups, allowed, most_steps=len(items))

    patch.setattr(placing, "fill", first_only)
    without_integer_program(patch)


def without_integer_program(patch: pytest.MonkeyPatch) -> None:
    """Stacking and spreading alone."""
    patch.setattr(placing.Placing, "_exactly", lambda *_: None)


def hosts_of_a_kind_are_one(patch: pytest.MonkeyPatch) -> None:
    """What is offloaded bounded over the pool, not on each node."""
    with_hosts = placing._OfKind.with_hosts

    def pooled(self: placing._OfKind, host_bytes: Floats) -> tuple[Site, ...] | None:
        return with_hosts(replace(self, host_bytes=(sum(self.host_bytes),) * len(self.host_bytes)), host_bytes)

    patch.setattr(placing._OfKind, "with_hosts", pooled)
    patch.setattr(certificate, "_room", lambda size, host, needs: size)


def host_shared_out_over_devices(patch: pytest.MonkeyPatch) -> None:
    """Each device with a part of the host of its own: what others on the node do not use is lost."""
    look = placing.Placing._look

    def shared_out(self: placing.Placing, needs: certificate.Needs, *rest: Any) -> Placement | None:
        parts = [host / size for classes in self.problem.pool.classes_of_kind for size, host in classes]
        return look(self, needs, *rest) if needs.host_bytes.max() <= min(parts) else None

    patch.setattr(placing.Placing, "_look", shared_out)


def frontier_of_one(patch: pytest.MonkeyPatch) -> None:
    """The K best plans looked for among the rows of the best one."""
    patch.setattr(solve, "frontiers", lambda problem, tables, top: frontier.frontiers(problem, tables, 1))


def free_latency_decides_alone(patch: pytest.MonkeyPatch) -> None:
    """Where latency is free, any other row stands for one that is not needed for it."""
    init = pairs.LatencyAside.__init__

    def loose(self: pairs.LatencyAside, problem: Problem, holder: int, tables: Sequence[Rows]) -> None:
        blind = [replace(t, active_bytes=t.active_bytes * 0, resident_bytes=t.resident_bytes * 0) for t in tables]
        init(self, problem, holder, blind)

    patch.setattr(branch.LatencyAside, "__init__", loose)


OFFLOADING: dict[str, Simplify] = {
    "dominance_without_host": _blind("host_bytes"),
    "hosts_of_a_kind_are_one": hosts_of_a_kind_are_one,
    "host_shared_out_over_devices": host_shared_out_over_devices,
}
"""Those that only problems with offloading can catch."""

SIMPLIFICATIONS: dict[str, Simplify] = {
    "memory_of_all_on_every_device": memory_of_all_on_every_device,
    "dominance_by_latency_and_devices": _blind("resident_bytes", "active_bytes", "quantum"),
    "dominance_without_active_bytes": _blind("active_bytes"),
    "dominance_without_quantum": _blind("quantum"),
    "dominance_blind_to_edges": dominance_blind_to_edges,
    "latency_always_counts_in_full": latency_always_counts_in_full,
    "greedy_placement": greedy_placement,
    "without_integer_program": without_integer_program,
    "frontier_of_one": frontier_of_one,
    "free_latency_decides_alone": free_latency_decides_alone,
}
