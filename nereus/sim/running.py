"""One EMU at work, by its ideal seconds and the ratios of what gets in the way.

    ModelSize, accelerator, degrees, sequences, where its groups lie -> Run -> ideal_s, bubble, ratios -> Surface

Compute that is slowed down (`slow`) makes the ideal seconds longer and the ratios of what is not slowed smaller; a slow link
makes its own ratio larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.sim.model_size import HALF, ModelSize
from nereus.sim.surface import Ratio
from nereus.spec.hardware import Accelerator, LinkClass

LAUNCH_S = 1e-3
"""Nominal seconds of the launches of one layer for one micro-batch, both directions; the surface has the scale."""

OPTIMIZER_BYTES = 28
"""Read and written for each parameter by mixed-precision AdamW: master, two moments, gradient, both ways, and the weight."""

BACKWARD = 2.0
"""Products of a backward over those of a forward."""

TP_ROUNDS = 2.0
"""All-reduces of one layer in a forward: after the attention and after the MLP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Where the devices of an EMU and of its fellows lie."""

    tp_nodes: int = 1
    """Nodes that a TP group spans."""
    hop_spans: bool = False
    """Whether neighbouring pipeline ranks lie in different nodes."""
    replica_nodes: int = 1
    """Nodes over which the replicas of one shard lie."""
    replicas_per_node: int = 1
    """Replicas of one shard in each of them: so many network cards does a ring use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Training or scoring of `sequences` on one EMU, once."""

    size: ModelSize
    accelerator: Accelerator
    tp: int = 1
    pp: int = 1
    dp: int = 1
    micro_batch: int = 1
    sequences: float
    tokens: float
    """Of one sequence, prompt included."""
    trains: bool = True
    recompute: bool = False
    zero1: bool = False
    groups: Groups = field(default_factory=Groups)
    slow: float = 1.0
    """Of its slowest device: 1 is what the surface was fitted on."""
    links: Mapping[LinkClass, float] = field(default_factory=dict)
    """Of the slowest link that each of its groups crosses."""

    @property
    def passes(self) -> float:
        """Forwards' worth of products: 1 where it only scores."""
        return 1.0 + (BACKWARD + self.recompute if self.trains else 0.0)

    @property
    def micro_batches(self) -> float:
        """Of one update; at least 1."""
        return max(self.sequences / self.micro_batch, 1.0)

    @property
    def ideal_s(self) -> float:
        """Seconds at the datasheet's peak on the busiest pipeline rank, without bubble; slow devices included."""
        products = self.passes * self.sequences * self.size.forward_products(self.tokens)
        peak = self.accelerator.flops_s("bfloat16")
        return self.slow * 2 * products * self.size.busiest_share(self.pp) / (self.tp * self.pp * peak)

    @property
    def bubble(self) -> float:
        """Slots of the schedule over those in which a rank computes."""
        return 1.0 + (self.pp - 1) / self.micro_batches

    def ratios(self) -> dict[Ratio, float]:
        """What gets in the way, over the ideal seconds."""
        ideal, slots = self.ideal_s, self.micro_batches
        layers = self.size.layers / self.pp
        launches = LAUNCH_S * layers * slots * self.passes / 3 / ideal
        found = {
            Ratio.SHORT: 4096 / (self.sequences / slots * self.tokens),
            Ratio.LAUNCH: launches,
            Ratio.NARROW: 1024 * self.tp / self.size.hidden,
        }
        if self.tp > 1:
            across = self.groups.tp_nodes > 1
            found[Ratio.TP_NETWORK if across else Ratio.TP_NODE] = self._tp_s(layers, across) / ideal
            if across:
                slow = self.links.get(LinkClass.NETWORK, 1.0)
                found[Ratio.SPAN] = launches * (self.groups.tp_nodes - 1) * slow
        if self.pp > 1:
            message = self.sequences * self.tokens * self.size.hidden * HALF * (2 if self.trains else 1)
            found[Ratio.HOPS] = message / self._rate(self.groups.hop_spans) / ideal
        if self.trains:
            shard = self.size.parameters / (self.tp * self.pp)
            state = shard * OPTIMIZER_BYTES / (self.dp if self.zero1 else 1)
            found[Ratio.OPTIMIZER] = state / self.accelerator.memory_bytes_s / ideal
            if self.dp > 1:
                found[Ratio.REPLICAS] = self._replicas_s(shard) / ideal
        return found

    def _tp_s(self, layers: float, across: bool) -> float:
        """Of the ring all-reduces of all activations."""
        message = self.sequences * self.tokens * self.size.hidden * HALF
        rounds = TP_ROUNDS * layers * (self.passes if self.recompute else min(self.passes, 2.0))
        return rounds * message * 2 * (self.tp - 1) / self.tp / self._rate(across)

    def _replicas_s(self, shard: float) -> float:
        """Of one ring all-reduce of the gradients."""
        groups = self.groups
        rate = self._rate(False)
        if groups.replica_nodes > 1:
            rate = min(rate, self._rate(True) * groups.replicas_per_node)
        return 2 * (self.dp - 1) / self.dp * shard * HALF / rate

    def _rate(self, across: bool) -> float:
        """Bytes per second of one device, one way."""
        link = LinkClass.NETWORK if across else LinkClass.NODE
        nominal = self.accelerator.network_bytes_s if across else self.accelerator.node_bytes_s
        return nominal / self.links.get(link, 1.0)
