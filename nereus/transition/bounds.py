"""Why no schedule of the same operations is shorter: one that meets a bound ends the search for others.

    chain       the longest that waits for itself
    lane        what one lane has to do, with what comes before the first and after the last
    uplink      the same of what crosses it, by shares, and by how many of so large a share it carries at once
    sequence    tasks one after the other, from 0 to the end of the schedule, no two of which could ever run together

The last one is read off a schedule: backwards from its end, what ends when the next one starts.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from math import floor, inf
from typing import NamedTuple

from nereus.transition.lanes import CLOSE, Columns, Schedule, Waits

MOST_STEPS = 1_000
"""Tasks looked at to read a sequence off a schedule; the longest that was found among generated ones took 60."""


class _Crossing(NamedTuple):
    """A task that crosses an uplink."""

    task: int
    head: float
    """Seconds before it at least."""
    tail: float
    """Seconds after it at least."""
    seconds: float
    share: float


class Bounds:
    """The bounds of tasks that wait for one another."""

    def __init__(self, columns: Columns, waits: Waits) -> None:
        self.columns, self.waits = columns, waits
        self.tails = [0.0] * len(columns.seconds)
        """Seconds from the start of each task to the end of the longest chain that it begins."""
        for index in reversed(waits.order):
            following = [self.tails[follower] for follower in waits.followers[index]]
            self.tails[index] = columns.seconds[index] + max(following, default=0.0)

    def prove(self, schedule: Schedule) -> bool:
        """Whether no schedule is shorter; False says nothing."""
        seconds = schedule.seconds - CLOSE
        return self._chain >= seconds or self._lanes >= seconds or self._sequence(schedule) or self.least >= seconds

    @cached_property
    def least(self) -> float:
        """Seconds that any schedule takes: what the longest chain, lane or uplink needs."""
        return max(self._chain, self._lanes, self._uplinks)

    @cached_property
    def _chain(self) -> float:
        return max(self.tails, default=0.0)

    @cached_property
    def _heads(self) -> list[float]:
        """Seconds of the longest chain before each task."""
        heads, seconds = [0.0] * len(self.tails), self.columns.seconds
        for index in self.waits.order:
            heads[index] = max([heads[before] + seconds[before] for before in self.waits.after[index]], default=0.0)
        return heads

    @cached_property
    def _lanes(self) -> float:
        """Seconds that some lane needs, with the least before its first task and after its last one."""
        size = self.columns.num_lanes
        busy, before, after = [0.0] * size, [inf] * size, [inf] * size
        for lanes, seconds, head, tail in zip(
            self.columns.lanes, self.columns.seconds, self._heads, self.tails, strict=True
        ):
            for lane in lanes:
                busy[lane] += seconds
                before[lane] = min(before[lane], head)
                after[lane] = min(after[lane], tail - seconds)
        return max(map(sum, zip(busy, before, after, strict=True)), default=0.0)

    @cached_property
    def _uplinks(self) -> float:
        """Seconds that some uplink needs, with the least before and after; looked for above those of the lanes only."""
        most = self._lanes
        for tasks in self._crossing:
            longest = _together(tasks)
            for head in {t.head for t in tasks}:
                late = [t for t in tasks if t.head >= head]
                for tail in sorted({t.tail for t in late}, reverse=True):
                    if head + tail + longest > most:
                        most = max(most, head + tail + _together([t for t in late if t.tail >= tail]))
        return most

    @cached_property
    def _crossing(self) -> list[list[_Crossing]]:
        """By uplink."""
        crossing: list[list[_Crossing]] = [[] for _ in range(self.columns.num_links)]
        for index, links in enumerate(self.columns.links):
            own = self.columns.seconds[index]
            for link, share in links:
                crossing[link].append(_Crossing(index, self._heads[index], self.tails[index] - own, own, share))
        return crossing

    def _sequence(self, schedule: Schedule) -> bool:
        """Whether tasks that could never run together follow each other without a gap from 0 to the end."""
        ended: defaultdict[int, list[int]] = defaultdict(list)
        for index, end in enumerate(self.columns.ends(schedule)):
            if self.columns.seconds[index] > CLOSE:
                ended[round(end / CLOSE)].append(index)
        # Moments that are reached going back, and who could run together with none of those after them.
        reached = [(schedule.seconds, -1)]
        for _ in range(MOST_STEPS):
            if not reached:
                return False
            moment, alone = reached.pop()
            if moment <= CLOSE:
                return True
            for index in ended[round(moment / CLOSE)]:
                if alone >> index & 1:
                    reached.append((schedule.starts[index], alone & self._never_beside(index)))
        return False

    def _never_beside(self, index: int) -> int:
        """Tasks, as bits, that can't run beside one: what it waits for, what shares a lane, or too much of an uplink."""
        before, on_lane = self._related
        found = before[index]
        for lane in self.columns.lanes[index]:
            found |= on_lane[lane]
        for link, share in self.columns.links[index]:
            for other in self._crossing[link]:
                if share + other.share > 1 + CLOSE:
                    found |= 1 << other.task
        return found

    @cached_property
    def _related(self) -> tuple[list[int], list[int]]:
        """As bits: what each task waits for, directly or not; the tasks of each lane."""
        before, on_lane = [0] * len(self.tails), [0] * self.columns.num_lanes
        for index in self.waits.order:
            for other in self.waits.after[index]:
                before[index] |= before[other] | 1 << other
            for lane in self.columns.lanes[index]:
                on_lane[lane] |= 1 << index
        return before, on_lane


def _together(tasks: list[_Crossing]) -> float:
    """The fewest seconds in which an uplink carries all of these, each started at any moment.

    At most k of those run at once that take more than 1 / (k + 1) of it: of the longest k, k + 1, ... one in k counts.
    """
    least = sum(t.seconds * t.share for t in tasks)
    for most in {max(1, floor(1 / t.share + CLOSE)) for t in tasks if t.share > CLOSE}:
        large = sorted((t.seconds for t in tasks if t.share * (most + 1) > 1 + CLOSE), reverse=True)
        least = max([least, *((at // most + 1) * seconds for at, seconds in enumerate(large))])
    return least
