"""How the world is at one moment: which devices and links are slower than at their best.

Drift at a time (or a script) -> Condition -> factor of a device, factor of the links that a group crosses
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nereus.spec.drift import Drift, Target, What
from nereus.spec.hardware import LinkClass


@dataclass(frozen=True, slots=True)
class Condition:
    """Factors that are not 1. Equal conditions are one key of what was worked out before."""

    factors: frozenset[tuple[Target, float]] = frozenset()
    devices: Mapping[int, float] = field(init=False, compare=False)
    nodes: Mapping[int, float] = field(init=False, compare=False)
    links: Mapping[tuple[LinkClass, tuple[int, ...]], float] = field(init=False, compare=False)
    """By class and places: none for all links, one node, or two."""

    def __post_init__(self) -> None:
        known = list(self.factors)
        object.__setattr__(self, "devices", {to.places[0]: by for to, by in known if to.what is What.DEVICE})
        object.__setattr__(self, "nodes", {to.places[0]: by for to, by in known if to.what is What.NODE})
        object.__setattr__(self, "links", {(to.link, to.places): by for to, by in known if to.what is What.LINK})

    @classmethod
    def of(cls, factors: Mapping[Target, float]) -> Condition:
        """From factors by target."""
        return cls(frozenset((target, factor) for target, factor in factors.items() if factor != 1.0))

    @classmethod
    def at(cls, drift: Drift, time_s: float) -> Condition:
        """What a drift comes to at a time."""
        return cls.of(drift.at(time_s))

    def slowed(self, devices: Mapping[int, float]) -> Condition:
        """This condition with some devices slower by further factors: stragglers."""
        found = dict(self.factors)
        for device, factor in devices.items():
            target = Target(What.DEVICE, (device,))
            found[target] = found.get(target, 1.0) * factor
        return Condition.of(found)

    @property
    def slows(self) -> bool:
        """Whether any device is slower."""
        return bool(self.devices or self.nodes)

    def compute(self, device: int, node: int) -> float:
        """How much slower a device computes."""
        return self.devices.get(device, 1.0) * self.nodes.get(node, 1.0)

    def link(self, link: LinkClass, nodes: Iterable[int]) -> float:
        """How much slower the slowest link is that a group of devices in these nodes crosses."""
        if not self.links:
            return 1.0
        among = sorted(set(nodes))
        slowest = max((self.links.get((link, (node,)), 1.0) for node in among), default=1.0)
        if link is LinkClass.NETWORK:
            pairs = ((a, b) for i, a in enumerate(among) for b in among[i + 1 :])
            slowest = max(slowest, max((self.links.get((link, pair), 1.0) for pair in pairs), default=1.0))
        return slowest * self.links.get((link, ()), 1.0)


USUAL = Condition()
"""Nothing is slower than it was when the surfaces were measured."""
