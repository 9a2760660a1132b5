"""The settings that a baseline has swept: the planner's best plans for a pool, told apart by the world's own clock.

devices, lengths -> OutlinePricing.search (K plans of distinct shape) -> those that fit -> the fastest by the truth
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import TypeAlias

from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.planner.outline_pricing import OutlinePricing
from nereus.planner.pricing import Devices, Target
from nereus.planner.pricing import Lengths as PlannedLengths
from nereus.sim.responses import Lengths
from nereus.sim.scenario import Scenario

Stages: TypeAlias = Mapping[str, StagePlan]

SWEPT = 8
"""Plans of distinct shape that are tried on the world: the best of them is within noise of the best of thirty."""

BAND = 0.1
"""Of the logs of lengths, within which the same plans are tried: their order is the world's, at the lengths themselves."""

MARGINS = (1.0, 1.4)
"""Of counted memory, for which plans are looked for: the world takes another amount than is counted, and no baseline may
lack a plan that would have fit."""


@dataclass(frozen=True)
class Sweep:
    """What can be run in a scenario, and how fast it really is. A plan that is found again is the same object."""

    scenario: Scenario

    @cached_property
    def _shapes(self) -> dict[tuple[tuple[int, ...], int, int], tuple[Stages, ...]]:
        return {}

    @cached_property
    def _pricings(self) -> tuple[OutlinePricing, ...]:
        scenario = self.scenario
        return tuple(OutlinePricing(outline=scenario.outline, models=scenario.models, memory_scale=m) for m in MARGINS)

    @cached_property
    def _plans(self) -> dict[tuple[tuple[DeviceId, ...], Lengths], tuple[Plan, ...]]:
        return {}

    def plans(self, usable: tuple[DeviceId, ...], lengths: Lengths) -> tuple[Plan, ...]:
        """Plans on these devices that fit at these lengths, the fastest first."""
        at = lengths.rounded
        if (usable, at) not in self._plans:
            sizes = tuple(len(devices) for devices in Devices(usable, self.scenario.node_of).nodes.values())
            band = sizes, round(log(at.mean) / BAND), round(log(at.longest) / BAND)
            if band not in self._shapes:
                self._shapes[band] = self._looked_for(usable, at)
            self._plans[usable, at] = self._fastest([Plan(0, _on(usable, shape)) for shape in self._shapes[band]], at)
        return self._plans[usable, at]

    def best(self, usable: tuple[DeviceId, ...], lengths: Lengths) -> Plan | None:
        """The fastest; None where none fits."""
        found = self.plans(usable, lengths)
        return found[0] if found else None

    def fits(self, plan: Plan, lengths: Lengths) -> bool:
        """Whether a step with these lengths has the memory that it takes."""
        return max(self.scenario.truth.peak_bytes(plan, lengths).values()) <= self.scenario.capacity_bytes

    def _looked_for(self, usable: tuple[DeviceId, ...], lengths: Lengths) -> tuple[Stages, ...]:
        """By position in the pool."""
        if not usable:
            return ()
        wanted = PlannedLengths(lengths.mean, lengths.longest)
        pool = Devices(usable, self.scenario.node_of)
        targets: list[Target] = []
        for pricing in self._pricings:
            targets += pricing.search(pool, wanted, SWEPT)
        distinct = {str(sorted((name, str(plan)) for name, plan in t.stages.items())): t.stages for t in targets}
        return tuple(distinct.values())

    def _fastest(self, plans: Sequence[Plan], lengths: Lengths) -> tuple[Plan, ...]:
        fitting = [(self.scenario.truth.step(p, lengths).seconds, i) for i, p in enumerate(plans) if self.fits(p, lengths)]
        return tuple(plans[i] for _, i in sorted(fitting))


def _on(usable: tuple[DeviceId, ...], stages: Stages) -> Stages:
    return {name: replace(plan, devices=tuple(usable[at] for at in plan.devices)) for name, plan in stages.items()}
