"""The last steps of an outline's job, and what their times teach: efficiencies by accelerator kind and role.

    stage times of a step -> Experience.after -> a look every few steps: fitted anew, unless the last fit predicts them
                          -> Experience.fitted, when a plan is priced

A fit takes as long as thousands of simulated steps, and most steps teach nothing: times are what they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, exp, log, sqrt
from statistics import NormalDist, fmean, median
from typing import NamedTuple, TypeAlias

from nereus.cost.accelerator import AcceleratorModel, Key, Learnt
from nereus.cost.priors import known_of
from nereus.cost.step import RECENCY, WINDOW
from nereus.cost.volume import Workload
from nereus.emu.plan import Plan
from nereus.planner.pricing import Lengths

LOOK_STEPS = 6
"""Steps from one look at the efficiencies to the next: six new steps outweigh all before in their fit."""

FIRST_LOOK = 2
"""Steps before the first look: what was only assumed until then may be off by half, and every step on a plan that was chosen
by it costs. One step alone may be one that warmed up."""

EXPLAINED = 0.05
"""Of a model-stage's seconds, as a mean over these steps: what the last fit predicts so well is not fitted again. A quarter
of the drift that triggers, and twice what steps vary by."""

QUANTILE = NormalDist().inv_cdf(0.99)
"""Standard deviations from the mean to the 99th percentile, at which memory is predicted (paper, section 4.1: a predicted
memory violation)."""

ROUNDING = 1e-6
"""Tokens that logs and their exponentials are off by: a limit of 8,192 stays one."""

ENOUGH = 8
"""Pairs of steps from which a spread is taken: of fewer, it is off by more than a third as often as not."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that was run."""

    plan: Plan
    lengths: Lengths
    stage_s: Mapping[str, float]
    """By model-stage, those without devices of their own included."""


Worked: TypeAlias = Callable[[str, Seen], tuple[Key, Workload]]
"""Kind and role of a model-stage of a step, and what it computed."""


class _Run(NamedTuple):
    """A model-stage that was run."""

    work: Workload
    seconds: float
    weight: float


@dataclass(frozen=True, slots=True)
class Experience:
    """What was seen, newest last."""

    steps: tuple[Seen, ...] = ()
    looked: Learnt = field(default_factory=dict)
    """What was fitted at the last look that found times which the fit before did not predict."""
    since: int = 0
    """Steps since the last look."""

    def lengths(self, mean: float, ratio: float) -> Lengths:
        """Responses of the next step, after one of `mean` tokens; `ratio` is the longest over the mean as declared.

        The longest is the 99th percentile of the longest over the mean of the step before (log-normal); until there are
        enough steps it is what was declared, or seen if that is more. The usual one follows the mean, unless it is steadier
        by itself, as where responses are cut off.
        """
        steps = [one.lengths for one in self.steps if one.lengths.mean > 0 and one.lengths.longest > 0]
        if len(steps) <= ENOUGH:
            tails = [one.longest / one.mean for one in steps]
            usual = mean * median(tails) if tails else 0.0
            return Lengths(mean, ceil(mean * max(ratio, *tails) if tails else mean * ratio), usual)
        ahead = [log(after.longest / before.mean) for before, after in pairwise(steps)]
        alone = [log(one.longest) for one in steps[1:]]
        is_cut = _spread(alone) < _spread(ahead)
        usual = median(one.longest if is_cut else mean * one.longest / one.mean for one in steps)
        longest = mean * exp(fmean(ahead) + QUANTILE * _spread(ahead))
        return Lengths(mean, ceil(max(longest - ROUNDING, usual)), usual)

    def after(self, one: Seen, known: Learnt, worked: Worked) -> Experience:
        """With one more step."""
        seen = replace(self, steps=(*self.steps[1 - WINDOW :], one), since=self.since + 1)
        if seen.since < (LOOK_STEPS if self.looked else FIRST_LOOK):
            return seen
        return replace(seen, since=0, looked=self.looked if seen._is_explained(worked) else seen.fitted(known, worked))

    def fitted(self, known: Learnt, worked: Worked) -> Learnt:
        """The efficiencies of each kind and role on the last steps; of those that were not seen, what was known."""
        runs: dict[Key, list[_Run]] = {}
        for age, one in enumerate(reversed(self.steps)):
            for stage, seconds in one.stage_s.items():
                key, work = worked(stage, one)
                runs.setdefault(key, []).append(_Run(work, seconds, RECENCY**age))
        return {**known, **{key: _fitted(known, key, found) for key, found in runs.items()}}

    def spent(self, worked: Worked) -> Mapping[str, float]:
        """Seconds that the last step spent in each class, by the efficiencies of the last look."""
        found: Counter[str] = Counter()
        for one in self.steps[-1:]:
            for stage in one.stage_s:
                key, work = worked(stage, one)
                found.update(known_of(self.looked, key).efficiencies.spent(_name(key), work))
        return found

    def _is_explained(self, worked: Worked) -> bool:
        """Whether the last fit predicts the steps since the last look."""
        if not self.looked:
            return False
        logs: dict[str, list[float]] = {}
        for one in self.steps[-LOOK_STEPS:]:
            for stage, seconds in one.stage_s.items():
                key, work = worked(stage, one)
                logs.setdefault(stage, []).append(log(seconds / known_of(self.looked, key).seconds(work)))
        return all(abs(fmean(found)) <= EXPLAINED for found in logs.values())


def achieved(learnt: Learnt) -> dict[str, float]:
    """What was measured, by class, kind and role."""
    return {name: v for key, known in learnt.items() for name, v in known.efficiencies.achieved(_name(key)).items()}


def assumed(known: Learnt, keys: Iterable[Key]) -> dict[str, float]:
    """What every class of these kinds and roles is taken for before it is measured."""
    return {name: v for key in keys for name, v in known_of(known, key).efficiencies.assumed(_name(key)).items()}


def _name(key: Key) -> str:
    return "/".join(key)


def _spread(logs: Sequence[float]) -> float:
    """Standard deviation of a sample; a hundred times as fast as that of `statistics`, which is exact."""
    mean = fmean(logs)
    return sqrt(sum((one - mean) ** 2 for one in logs) / (len(logs) - 1))


def _fitted(known: Learnt, key: Key, runs: Sequence[_Run]) -> AcceleratorModel:
    before = known_of(known, key)
    works, seconds, weights = zip(*runs, strict=True)
    return replace(before, efficiencies=before.efficiencies.learn(works, seconds, weights))
