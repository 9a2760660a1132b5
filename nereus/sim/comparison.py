"""Runs of one scenario side by side, as plain values: what `--json` prints, and what the HTML report shows.

Scenario, Outcomes -> Comparison --as_dict--> JSON --report--> HTML
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nereus.sim.outcome import Outcome
from nereus.sim.scenario import Scenario
from nereus.sim.timeline import Change, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What became of one scenario under several policies; the first is the one that the others are held against."""

    scenario: Scenario
    files: Mapping[str, str | None]
    """By option: what was read."""
    outcomes: Sequence[Outcome]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON. Every key has its row in docs/simulator.md."""
        scenario = self.scenario
        return {
            "job": scenario.outline.name,
            "files": dict(self.files),
            "devices": scenario.outline.num_devices,
            "seed": scenario.truth.seed,
            "gamma": scenario.policy.gamma,
            "trace_seconds": scenario.duration_s,
            "pool": [list(point) for point in pool_over_time(scenario.timeline)],
            "outcomes": [self._outcome(outcome) for outcome in self.outcomes],
        }

    def _outcome(self, outcome: Outcome) -> dict[str, Any]:
        curve, first = self.scenario.curve, self.outcomes[0].throughput
        lengths = [[time_s, done + 1, curve.mean(done + 1)] for time_s, done in outcome.progress]
        found = outcome.as_dict()
        del found["progress"]
        return {**found, "of_first": outcome.throughput / first if first else None, "lengths": lengths}


def pool_over_time(timeline: Timeline) -> list[tuple[float, int]]:
    """(seconds, devices that are there from then on): one point for each time at which devices come or go."""
    count, found = len(timeline.start), {0.0: len(timeline.start)}
    for event in timeline.events:
        if event.change is not Change.NOTICE:
            count += len(event.devices) if event.change is Change.ARRIVED else -len(event.devices)
            found[event.time_s] = count
    return sorted(found.items())
