"""Where the EMUs of a plan lie, and what slows them down there at a moment.

StagePlan, kind and node of each device -> Topology       what its groups span; once for each plan
Topology, Condition -> Place of each EMU -> Run, Decode    equal places take equal time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nereus.emu.plan import DeviceId, StagePlan
from nereus.errors import LayoutError
from nereus.sim.condition import Condition
from nereus.sim.running import Groups
from nereus.spec.hardware import LinkClass


@dataclass(frozen=True, slots=True)
class Place:
    """One EMU in the world at a moment."""

    kind: str
    groups: Groups
    slow: float
    """Factor of its slowest device: ranks wait for each other in every layer or slot."""
    links: tuple[tuple[LinkClass, float], ...]
    """Factor of the slowest link of each class among the model-stage's devices: gradients cross them all."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Where a model-stage's EMUs lie."""

    nodes: frozenset[int]
    alike: Mapping[tuple[str, Groups], tuple[tuple[tuple[DeviceId, int], ...], ...]]
    """By kind and by what their groups span: the EMUs, by their devices and the nodes of these."""

    @classmethod
    def of(cls, plan: StagePlan, kinds: Mapping[DeviceId, str], node_of: Mapping[DeviceId, int]) -> Topology:
        """Raises LayoutError for devices and axes that the world does not have."""
        if plan.layout.size != plan.layout.tp * plan.layout.pp:
            raise LayoutError(
                f"{plan.stage}: layout {plan.layout} has an axis besides tp and pp; the simulated world has none"
            )
        missing = [device for device in plan.devices if device not in node_of]
        if missing:
            raise LayoutError(
                f"{plan.stage}: device {missing[0]} is not in the pool of {len(node_of)}; plan for those that are"
            )
        replica_nodes, per_node = _rings(plan, node_of)
        alike: dict[tuple[str, Groups], list[tuple[tuple[DeviceId, int], ...]]] = {}
        for group in plan.groups:
            at = tuple((device, node_of[device]) for device in group)
            tp_nodes, hop_spans = _spans(plan.layout.tp, [node for _, node in at])
            groups = Groups(tp_nodes=tp_nodes, hop_spans=hop_spans, replica_nodes=replica_nodes, replicas_per_node=per_node)
            alike.setdefault((kinds[group[0]], groups), []).append(at)
        nodes = frozenset(node_of[device] for device in plan.devices)
        return cls(nodes, {key: tuple(emus) for key, emus in alike.items()})

    def places(self, condition: Condition) -> Iterator[Place]:
        """The distinct places of the EMUs."""
        links = tuple((link, condition.link(link, self.nodes)) for link in LinkClass)
        for (kind, groups), emus in self.alike.items():
            slow = {1.0}
            if condition.slows:
                slow = {max(condition.compute(device, node) for device, node in emu) for emu in emus}
            yield from (Place(kind, groups, factor, links) for factor in slow)


def _rings(plan: StagePlan, node_of: Mapping[DeviceId, int]) -> tuple[int, int]:
    """The most nodes over which the replicas of one shard lie, and the fewest of them in one of those."""
    most, fewest = 1, plan.dp
    for rank in range(plan.layout.size):
        counts: dict[int, int] = {}
        for device in plan.devices[rank :: plan.layout.size]:
            node = node_of[device]
            counts[node] = counts.get(node, 0) + 1
        most, fewest = max(most, len(counts)), min(fewest, *counts.values())
    return most, fewest


def _spans(tp: int, nodes: list[int]) -> tuple[int, bool]:
    """The most nodes that a TP group lies in, and whether two neighbouring pipeline ranks lie in different ones."""
    within = max(len(set(nodes[start : start + tp])) for start in range(0, len(nodes), tp))
    between = any(nodes[rank] != nodes[rank + tp] for rank in range(len(nodes) - tp))
    return within, between
