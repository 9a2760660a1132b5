"""One generation EMU at work: iterations that add a token to every sequence, by the ratios of what they wait for.

    iterations = longest + (sequences / concurrent - 1) x mean      the last wave starts when the ones before have ended
    ideal      = reading the active weights once, layer by layer through all pipeline ranks
    seconds    = prefill + iterations x ideal x slowdown at the mean concurrency and context

So generation is nearly linear in (longest, tokens), as in the published logs: the longest pays for iterations, tokens for
keys, products and bookkeeping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2

from nereus.sim.model_size import HALF, ModelSize
from nereus.sim.surface import Ratio
from nereus.spec.hardware import Accelerator, LinkClass

LAUNCH_S = 1e-4
"""Nominal seconds of the launches of one layer; the surface has the scale."""

SEQUENCE_S = 1e-4
"""Nominal seconds of sampling and bookkeeping for one sequence."""

ROUND_S = 1e-5
"""Nominal seconds of the smallest all-reduce, for each doubling of the TP group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """One iteration of one EMU."""

    size: ModelSize
    accelerator: Accelerator
    tp: int = 1
    pp: int = 1
    concurrent: float
    """Sequences that decode together."""
    context: float
    """Tokens of a sequence so far, on average."""
    item_bytes: float = HALF
    """Of a weight, a key and a value."""
    tp_spans: bool = False
    slow: float = 1.0
    """Of its slowest device."""
    links: Mapping[LinkClass, float] = field(default_factory=dict)

    @property
    def ideal_s(self) -> float:
        """Seconds of reading the active weights at the datasheet's bandwidth."""
        return self.slow * self.size.active * self.item_bytes / (self.tp * self.accelerator.memory_bytes_s)

    def ratios(self) -> dict[Ratio, float]:
        """What an iteration waits for besides, over the ideal seconds.

        Pipeline ranks share a batch out among them: an iteration has as many slots as there are ranks, each for its part.
        """
        ideal, ranks = self.ideal_s, self.tp * self.pp
        keys = self.concurrent * self.context * self.size.kv_bytes * self.item_bytes / HALF
        products = self.concurrent * self.size.forward_products(1.0)
        peak = self.accelerator.flops_s("bfloat16" if self.item_bytes == HALF else "float8")
        found = {
            Ratio.KEYS: self.slow * keys * self.size.kv_share(self.tp) / (self.pp * self.accelerator.memory_bytes_s) / ideal,
            Ratio.PRODUCTS: self.slow * 2 * products / (ranks * peak) / ideal,
            Ratio.SEQUENCES: SEQUENCE_S * self.concurrent / self.pp / ideal,
            Ratio.LAUNCH: LAUNCH_S * self.size.layers / ideal,
        }
        if self.tp > 1:
            link = LinkClass.NETWORK if self.tp_spans else LinkClass.NODE
            found[Ratio.TP_NETWORK if self.tp_spans else Ratio.TP_NODE] = self._tp_s(link) / ideal
        if self.pp > 1:
            found[Ratio.HOPS] = 2 * ROUND_S * self.pp * self.links.get(LinkClass.NETWORK, 1.0) / ideal
        return found

    def _tp_s(self, link: LinkClass) -> float:
        """Of two all-reduces in each layer."""
        across = link is LinkClass.NETWORK
        rate = self.accelerator.network_bytes_s if across else self.accelerator.node_bytes_s
        message = self.concurrent / self.pp * self.size.hidden * HALF * 2 * (self.tp - 1) / self.tp
        latency = ROUND_S * log2(self.tp) * (5 if across else 1)
        return 2 * self.size.layers * (latency + message / rate) * self.links.get(link, 1.0)
