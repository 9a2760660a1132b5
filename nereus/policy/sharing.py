"""How many devices each of several jobs gets: its least first, then whatever lengthens no step for nothing.

    L_step by number of devices, of each job -> shared_out -> numbers of devices       wanted -> what to ask the cluster for

What a job gains by devices is the logarithm of its speed-up: a job of minutes per step and one of seconds count alike, and
the marginal gain of a device is the share by which it shortens the step. Gains are not concave (a TP degree takes two more
devices or none), so the best split is found over all counts, not greedily; where they are, it is the greedy one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

from nereus.planner.pricing import Devices, Lengths, Pricing

MOVE_COST = 0.05
"""Gain below which no device goes from one job to another: a transition on both sides costs seconds, and predictions err by
a few percent. At 0, jobs would pass devices to and fro as their lengths change."""

WORTH = 0.25
"""Share of what a job's devices bring on average that further ones must bring, to be asked for. At 1 only what scales
linearly is asked for; at 0 a device that shortens a step by nothing that is felt."""

ALL_COUNTS = 16
"""Devices up to which every number is priced; above it only whole nodes, since each number is a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job can do with devices."""

    least: int
    """It cannot run with fewer."""
    most: int
    """It cannot use more."""
    now: int
    """What it has."""
    seconds: Mapping[int, float]
    """Predicted L_step by number of devices; of numbers that are left out, that of the next smaller one."""

    def step_s(self, count: int) -> float:
        """L_step on so many devices, of which a plan may leave some out; infinite where none is known to fit."""
        return min((seconds for number, seconds in self.seconds.items() if number <= count), default=inf)

    def gain(self, count: int) -> float:
        """Logarithm of the speed-up over the least."""
        least_s, step_s = self.step_s(self.least), self.step_s(count)
        return log(least_s / step_s) if 0 < step_s < least_s < inf else 0.0

    def marginal(self, count: int) -> float:
        """Gain per device of the next devices beyond `count`, as many together as bring the most each; 0 where none does."""
        return max(
            ((self.gain(more) - self.gain(count)) / (more - count) for more in range(count + 1, self.most + 1)), default=0.0
        )


def step_times(pricing: Pricing, places: Sequence[int], node_of: Mapping[int, int], lengths: Lengths) -> dict[int, float]:
    """L_step of the best plan on the first 1, 2, ... of these devices, where one fits."""
    each = max((sum(node_of[other] == node_of[place] for other in places) for place in places), default=1)
    counts = [n for n in range(1, len(places) + 1) if n <= ALL_COUNTS or n % each == 0 or n == len(places)]
    found = {n: pricing.search(Devices(tuple(places[:n]), node_of), lengths, 1) for n in counts}
    return {n: targets[0].seconds for n, targets in found.items() if targets}


def shared_out(demands: Sequence[Demand], total: int) -> tuple[int, ...]:
    """How many of `total` devices each job gets: the split with the most gain, and of such the one with the fewest devices.

    A split other than the present one must gain MOVE_COST for each job whose devices become fewer. Where the devices do not
    even do for every least, each keeps what it has.
    """
    if sum(demand.least for demand in demands) > total:
        return tuple(min(demand.now, demand.most) for demand in demands)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for demand in demands:
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for count in range(demand.least, max(demand.least, min(demand.most, total)) + 1):
            value = worth_of(demand, count)
            for taken, (sum_of, counts) in best.items():
                now = taken + count
                if now <= total and (now not in longer or sum_of + value > longer[now][0] + 1e-9):
                    longer[now] = (sum_of + value, (*counts, count))
        best = longer
    most = max(value for value, _ in best.values())
    return best[min(taken for taken, (value, _) in best.items() if value >= most - 1e-9)][1]


def worth_of(demand: Demand, count: int) -> float:
    """What a split counts for a job: its gain, less what taking devices away costs."""
    return demand.gain(count) - (MOVE_COST if count < demand.now else 0.0)


def wanted(demand: Demand) -> int:
    """How many devices are worth asking for: up to where further ones bring less than WORTH of what the first ones do."""
    count = demand.least
    for more in range(demand.least + 1, demand.most + 1):
        speed, before = 1 / demand.step_s(more), 1 / demand.step_s(count)
        if speed > before and (speed - before) / (more - count) >= WORTH * before / count:
            count = more
    return count
