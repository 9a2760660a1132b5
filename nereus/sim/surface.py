"""Response surfaces: how much longer than at a datasheet's peak something takes.

    device  = product over (1 + scale * ratio ** power) of what slows a device's own work down
    host    = scale * ratio ** power of each cost that does not grow with tokens
    seconds = ideal x base x bubble ** b x (device ** q + sum of host ** q) ** (1 / q)

A ratio is what gets in the way over the ideal seconds. Slowdowns of the device multiply: what is slowed by one thing is
slowed by the next as well. The largest cost outweighs the others, the more so the larger q is. Powers of costs are at
most 1, so that more tokens never take less time. The cost model adds seconds of operations over learnt efficiencies
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Ratio(StrEnum):
    """What gets in the way, over the ideal seconds."""

    SHORT = "short"
    """4,096 over the tokens of a micro-batch: short products reach less of the peak."""
    LAUNCH = "launch"
    """Launches of kernels: a nominal time for each layer."""
    SPAN = "span"
    """Launches of collectives over the network, where a TP group spans nodes: the same for each node after the first."""
    REPLICAS = "replicas"
    """Gradients between replicas, at the rate of the link."""
    OPTIMIZER = "optimizer"
    """Reading and writing the optimizer state."""
    SEQUENCES = "sequences"
    """Sampling and bookkeeping of each sequence of a decoding batch."""
    KEYS = "keys"
    """Reading keys and values while decoding."""
    PRODUCTS = "products"
    """Products while decoding: of a large batch, more than reading the weights."""
    NARROW = "narrow"
    """1,024 over the width of a TP rank: narrow products reach less of the peak."""
    TP_NODE = "tp_node"
    """Activations inside a TP group, at the rate of the node's links."""
    TP_NETWORK = "tp_network"
    """The same where the group spans nodes, at the rate of the network."""
    HOPS = "hops"
    """Activations between pipeline ranks."""


DEVICE = frozenset((Ratio.NARROW, Ratio.TP_NODE, Ratio.TP_NETWORK, Ratio.HOPS))
"""What slows the device's own work down; the others are costs beside it."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One term: scale * ratio ** power."""

    scale: float
    power: float = 1.0

    def at(self, ratio: float) -> float:
        """What it adds; 0 where nothing gets in the way."""
        return self.scale * ratio**self.power if ratio > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Surface:
    """One kind of work on one kind of device."""

    base: float
    """Slowdown of wide, long products of one device: one over the share of the datasheet's peak that it reaches."""
    sharpness: float
    """q: 1 adds costs up, infinity lets the largest alone count."""
    terms: Mapping[Ratio, Slowdown]
    bubble: float = 1.0
    """Power of 1 + (pp - 1) / micro-batches; 1 is what a 1F1B schedule without hiccups has."""

    def slowdown(self, ratios: Mapping[Ratio, float], bubble: float = 1.0) -> float:
        """Realised over ideal seconds."""
        device, costs, q = 1.0, 0.0, self.sharpness
        for ratio, value in ratios.items():
            added = self.terms[ratio].at(value)
            if ratio in DEVICE:
                device *= 1.0 + added
            else:
                costs += added**q
        return float(self.base * bubble**self.bubble * (device**q + costs) ** (1 / q))
