"""What a person gives a simulation, checked as a whole, and the scenario that comes of it.

outline, models, availability trace [, lengths, drift, gamma, seed, steps, notice] -> Inputs -> Scenario
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from nereus.errors import UserError
from nereus.sim.described import links_of, states_of
from nereus.sim.responses import ResponseCurve
from nereus.sim.scenario import Scenario
from nereus.sim.timeline import Timeline
from nereus.sim.truth import Truth
from nereus.spec.drift import Drift
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline
from nereus.spec.policy import GAMMA, Policy
from nereus.spec.problems import refuse
from nereus.spec.traces import COUNT, TIME, AvailabilityTrace

NOTICE_S = 120.0
"""Seconds from the notice that a device leaves to its end: what AWS gives spot instances; Google and Azure give 30."""

BUCKETS = 64
"""Parts of a device's memory, of which moving state may take one each way: 1.25 GiB of 80, an eighth of the headroom. With
larger ones streams have fewer rounds."""

UNBOUNDED_STEPS = 10**9
"""RL steps of a run that ends with its trace: more than any trace has room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One simulation, by what was asked for."""

    outline: Outline
    models: Mapping[str, HfModel]
    """By name in the workflow."""
    trace: AvailabilityTrace
    lengths: tuple[tuple[int, float], ...] = ()
    """(step, mean response in tokens); none: the outline's mean throughout."""
    longest: int | None = None
    """Where responses are cut off, in tokens; None: nowhere."""
    drift: Drift | None = None
    gamma: float = GAMMA
    seed: int = 0
    """Which world."""
    steps: int | None = None
    """RL steps at most; None: to the end of the trace."""
    notice_s: float = NOTICE_S

    def scenario(self) -> Scenario:
        """The scenario. Raises UserError with the option, its value and what is allowed."""
        self._check()
        outline, models, work = self.outline, self.models, self.outline.workload
        return Scenario(
            outline=outline,
            models=models,
            states=states_of(outline, models),
            timeline=Timeline.of(self.trace, outline.num_devices, self.notice_s),
            curve=ResponseCurve(
                self.lengths or ((0, float(work.response_tokens)),), samples=work.global_batch, most=self.longest
            ),
            truth=Truth(outline, models, self.seed),
            drift=self.drift,
            policy=Policy(adapt=True, gamma=self.gamma, headroom=outline.headroom, bucket=self._bucket_bytes),
            links=links_of(outline),
            max_steps=self.steps or UNBOUNDED_STEPS,
        )

    @property
    def _bucket_bytes(self) -> int:
        return min(group.memory_bytes for group in self.outline.nodes) // BUCKETS

    def _check(self) -> None:
        for model in self.models.values():
            if model.unmoved:
                raise refuse(model.unmoved)
        if not 0 <= self.gamma <= 1:
            raise UserError(f"--gamma: {self.gamma} is not allowed; it must be 0 to 1, and is {GAMMA} unless given")
        if not (isfinite(self.notice_s) and self.notice_s >= 0):
            raise UserError(f"--notice: {self.notice_s} is not allowed; it must be a number of seconds, 0 or more")
        if not self.trace.duration_s:
            raise UserError(f"--availability: {TIME} has one value; it must have two or more, of which the last is the end")
        if not any(count for _, count in self.trace.points):
            raise UserError(f"--availability: {COUNT} is 0 in every row; at least one row must be above 0")
