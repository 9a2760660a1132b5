"""What the API was asked, counted in its own process: by method, route template and class of status, never by URL."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets, in seconds: a GET takes a millisecond, a POST up to 10 s while a controller restarts."""

STATUS_CLASSES = ("2xx", "3xx", "4xx", "5xx")

UNMATCHED = "unmatched"
"""The route of a request that no route fits, or that was refused before one was looked for."""


@dataclass(slots=True)
class RequestTallies:
    """Requests since this process began to serve. `routes` are all (method, template) that are counted apart."""

    routes: tuple[tuple[str, str], ...] = ()
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By method, route template, class of status."""
    buckets: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By method and route template: how many fell into each bucket, the last one beyond all bounds."""
    sums_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Take one request in; a method or route that is not known is counted under `unmatched`."""
        where = (method, route) if (method, route) in self.routes else (UNMATCHED, UNMATCHED)
        self.counts[(*where, f"{status // 100}xx")] += 1
        self.buckets.setdefault(where, [0] * (len(BOUNDS_S) + 1))[bisect_left(BOUNDS_S, seconds)] += 1
        self.sums_s[where] = self.sums_s.get(where, 0.0) + seconds

    def cumulative(self, where: tuple[str, str]) -> list[tuple[str, float]]:
        """How many requests took up to each bound; all of them under +Inf."""
        counts, so_far, found = self.buckets.get(where, [0] * (len(BOUNDS_S) + 1)), 0, []
        for bound, number in zip((*map(str, BOUNDS_S), "+Inf"), counts, strict=True):
            so_far += number
            found.append((bound, float(so_far)))
        return found
