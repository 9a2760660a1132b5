"""The transition DAG of a change, compiled once in a process: for a planner that asks again, or a simulated core that asks.

Snapshot, stage plans -> Asked (all that the answer depends on, as a value) -> Transition, MemoryCheck
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.dag import Change
from nereus.transition.estimate import LinkRates
from nereus.transition.feasibility import MemoryCheck
from nereus.transition.ops import Transition
from nereus.transition.planning import planned

REMEMBERED = 8
"""Transitions that are kept, some megabytes each for a thousand devices: the candidates of one replan, and no history."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A change, and what it may take. Equal questions have one answer."""

    changed: tuple[tuple[str, StagePlan], ...]
    emus: tuple[tuple[str, tuple[Emu, ...]], ...]
    """Of all model-stages, those that stay as they are too."""
    states: tuple[tuple[str, StateSpec], ...]
    endpoint_of: tuple[tuple[DeviceId, EndpointId], ...]
    node_of: tuple[tuple[EndpointId, int], ...]
    apart: frozenset[frozenset[str]]
    """Pairs of model-stages that never share a device."""
    epoch: int
    usable_bytes: float
    bucket_bytes: int
    links: LinkRates


@lru_cache(maxsize=REMEMBERED)
def compiled(asked: Asked) -> tuple[Transition, MemoryCheck]:
    """The transition DAG, and whether it fits; what does not fit at once is put in another order, or streamed.

    Raises LayoutError if there is no order.
    """
    changed, emus = dict(asked.changed), dict(asked.emus)
    change = Change(
        current={stage: emus[stage] for stage in changed},
        targets=changed,
        states=dict(asked.states),
        endpoint_of=dict(asked.endpoint_of),
        epoch=asked.epoch,
        node_of=dict(asked.node_of),
        exclusive=lambda a, b: frozenset((a, b)) in asked.apart,
        bucket_bytes=asked.bucket_bytes,
        standing=tuple(emu for name, units in emus.items() if name not in changed for emu in units),
    )
    standing = [emu for units in emus.values() for emu in units]
    return planned(change, standing, asked.usable_bytes, asked.links)
