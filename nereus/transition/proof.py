"""Why no schedule of the same operations is shorter: with one proof at hand, no other schedule has to be made.

    chain       the longest that waits for itself
    lane        what one lane has to do, with what comes before the first and after the last
    uplink      the same of what crosses it, by shares, and by how many of so large a share it carries at once
    sequence    tasks one after the other, from 0 to the end of the schedule, no two of which could ever run together

The last one is read off a schedule: backwards from its end, what ends when the next one starts.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from math import floor
from typing import NamedTuple

from nereus.transition.lanes import CLOSE, Columns, Schedule, Waits

MOST_STEPS = 1_000
"""Tasks looked at to read a sequence off a schedule; the longest that was found among generated ones took 60."""


class _Crossing(NamedTuple):
    """A task that crosses an uplink."""

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
        seconds = columns.seconds
        self.tails = [0.0] * len(seconds)
        """Seconds from the start of each task to the end of the longest chain that it begins."""
        for index in reversed(waits.order):
            self.tails[index] = seconds[index] + max([self.tails[f] for f in waits.followers[index]], default=0.0)
        self.heads = [0.0] * len(seconds)
        """Seconds of the longest chain before each task."""
        for index in waits.order:
            self.heads[index] = max([self.heads[b] + seconds[b] for b in waits.after[index]], default=0.0)
        self.least = max([*self.tails, *self._of_lanes()], default=0.0)
        """Seconds: of the longest chain and the longest lane."""

    def prove(self, schedule: Schedule) -> bool:
        """Whether no schedule is shorter; False says nothing."""
        return schedule.seconds <= self.least + CLOSE or self._sequence(schedule) or self._uplink(schedule.seconds)

    def _of_lanes(self) -> list[float]:
        seconds, on_lane = self.columns.seconds, [list[int]() for _ in range(self.columns.num_lanes)]
        for index, lanes in enumerate(self.columns.lanes):
            for lane in lanes:
                on_lane[lane].append(index)
        return [
            min([self.heads[i] for i in members])
            + sum([seconds[i] for i in members])
            + min([self.tails[i] - seconds[i] for i in members])
            for members in on_lane
        ]

    def _uplink(self, seconds: float) -> bool:
        """Whether some uplink needs so long, whatever the order on it."""
        crossing: list[list[_Crossing]] = [[] for _ in range(self.columns.num_links)]
        for index, links in enumerate(self.columns.links):
            own = self.columns.seconds[index]
            for link, share in links:
                crossing[link].append(_Crossing(self.heads[index], self.tails[index] - own, own, share))
        return any(_takes(tasks, seconds - CLOSE) for tasks in crossing)

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
                    reached.append((schedule.starts[index], alone & self._never_beside[index]))
        return False

    @cached_property
    def _never_beside(self) -> list[int]:
        """For each task, as bits, those that can't run at the same time: by who waits for whom, by lanes, by uplinks."""
        columns, waits, count = self.columns, self.waits, len(self.columns.seconds)
        before, after, on_lane = [0] * count, [0] * count, [0] * columns.num_lanes
        for index in waits.order:
            for other in waits.after[index]:
                before[index] |= before[other] | 1 << other
        for index in reversed(waits.order):
            for other in waits.followers[index]:
                after[index] |= after[other] | 1 << other
        crossing: list[list[tuple[float, int]]] = [[] for _ in range(columns.num_links)]
        for index in range(count):
            for lane in columns.lanes[index]:
                on_lane[lane] |= 1 << index
            for link, share in columns.links[index]:
                crossing[link].append((share, index))
        found = [b | a for b, a in zip(before, after, strict=True)]
        for index, lanes in enumerate(columns.lanes):
            for lane in lanes:
                found[index] |= on_lane[lane]
        for users in crossing:
            for share, index in users:
                for others, other in users:
                    if share + others > 1 + CLOSE:
                        found[index] |= 1 << other
        return found


def _takes(tasks: list[_Crossing], seconds: float) -> bool:
    """Whether the tasks that cross one uplink, or some of them, need so long."""
    if not tasks or max(t.head for t in tasks) + max(t.tail for t in tasks) + _together(tasks) < seconds:
        return False
    for head in {t.head for t in tasks}:
        late = [t for t in tasks if t.head >= head]
        for tail in {t.tail for t in late}:
            if head + tail + _together([t for t in late if t.tail >= tail]) >= seconds:
                return True
    return False


def _together(tasks: list[_Crossing]) -> float:
    """The fewest seconds in which an uplink carries all of these, each started at any moment.

    At most k of those run at once that take more than 1 / (k + 1) of it: of the longest k, k + 1, ... one in k counts.
    """
    least = sum(t.seconds * t.share for t in tasks)
    for most in {floor(1 / t.share + CLOSE) for t in tasks}:
        large = sorted((t.seconds for t in tasks if t.share * (most + 1) > 1 + CLOSE), reverse=True)
        least = max([least, *((at // most + 1) * seconds for at, seconds in enumerate(large))])
    return least
