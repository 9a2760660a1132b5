"""Drift over time: how much slower devices and links are than at their best, from a CSV that people wrote or measured.

    time_s,device_or_link,factor                      Nereus' own: 3 | node:2 | link:node | link:network:5 | link:2-5 ...
    iteration,worker0_time_norm,worker1_time_norm...  times of a job's mini-batches, an iteration taken as a second
    region,sku,vm,time_s,rel_speed                    speeds of machines over time, each of them taken as a device

A factor of 1.25 means that what takes a second takes 1.25 s; it holds until the next row of the same target, and is 1 before
the first. Targets that overlap multiply.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from nereus.errors import UserError
from nereus.spec.hardware import LinkClass

MOST = 1000.0
"""Largest factor: what is slower is down, and belongs into an availability trace."""

TARGETS = (
    "a device number (3), node:N (all devices of a node), link:node or link:network (all links of a class), "
    "link:node:N or link:network:N (those of one node), or link:A-B (the network between two nodes)"
)


class What(StrEnum):
    """What a row of a drift file is about."""

    DEVICE = "device"
    NODE = "node"
    """All devices of a node: their compute, not their links."""
    LINK = "link"
    """All links of a class, those of one node, or those between two nodes."""


class Target(NamedTuple):
    """A device, a node or links."""

    what: What
    places: tuple[int, ...]
    """A device; a node; of links: no node for all of them, one node, or two for what lies between them."""
    link: LinkClass | None = None

    def __str__(self) -> str:
        if self.what is not What.LINK:
            return f"{self.what}:{self.places[0]}"
        if len(self.places) == 2:
            return f"link:{self.places[0]}-{self.places[1]}"
        return ":".join(("link", str(self.link), *map(str, self.places)))


_TARGET = re.compile(r"(\d{1,9})|node:(\d{1,9})|link:(node|network)(?::(\d{1,9}))?|link:(\d{1,9})-(\d{1,9})", re.ASCII)


def parse_target(text: str) -> Target | None:
    """The target that a drift file names; None for what is no name of one."""
    match = _TARGET.fullmatch(text)
    if match is None:
        return None
    device, node, link, of, one, other = match.groups()
    if device is not None:
        return Target(What.DEVICE, (int(device),))
    if node is not None:
        return Target(What.NODE, (int(node),))
    if link is not None:
        return Target(What.LINK, () if of is None else (int(of),), LinkClass(link))
    if one == other:
        return None
    return Target(What.LINK, (min(int(one), int(other)), max(int(one), int(other))), LinkClass.NETWORK)


@dataclass(frozen=True, slots=True)
class Drift:
    """Factors of targets over time."""

    series: Mapping[Target, tuple[tuple[float, float], ...]]
    """Of each target (time in seconds, factor from then on), times ascending."""

    @classmethod
    def of(cls, rows: Iterable[tuple[float, Target, float]]) -> Drift:
        """From rows of (time, target, factor), those of each target in ascending time."""
        found: dict[Target, list[tuple[float, float]]] = {}
        for time, target, factor in rows:
            found.setdefault(target, []).append((time, factor))
        return cls({target: tuple(points) for target, points in found.items()})

    @property
    def times(self) -> tuple[float, ...]:
        """Every time at which a factor changes, ascending."""
        return tuple(sorted({time for points in self.series.values() for time, _ in points}))

    def factor(self, target: Target, time_s: float) -> float:
        """How much slower a target is at a time; 1 before its first row, and where no row names it."""
        points = self.series.get(target, ())
        place = bisect_right(points, time_s, key=lambda point: point[0])
        return points[place - 1][1] if place else 1.0

    def at(self, time_s: float) -> dict[Target, float]:
        """All factors at a time that are not 1."""
        found = {target: self.factor(target, time_s) for target in self.series}
        return {target: factor for target, factor in found.items() if factor != 1.0}

    def stretched(self, by: float) -> Drift:
        """The same drift in `by` times its time: traces by iteration are brought to seconds with it. Raises UserError."""
        if not 0 < by < float("inf"):
            raise UserError(f"stretch of a drift: {by} is not allowed; it must be a finite number above 0")
        return Drift({to: tuple((time * by, factor) for time, factor in points) for to, points in self.series.items()})
