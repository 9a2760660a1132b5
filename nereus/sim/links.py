"""What links really reach: sends of moving state, and weight syncs.

bytes, link class, factor -> latency + bytes / (share x datasheet rate)
"""

from __future__ import annotations

from dataclasses import dataclass

from nereus.sim.noise import drawn
from nereus.sim.published import SEND_LATENCY_S, SEND_SHARE, SPREAD, SYNC_FIXED_S, SYNC_SHARE
from nereus.spec.hardware import Accelerator, LinkClass


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one kind of device in one world."""

    accelerator: Accelerator
    seed: int

    def move_seconds(self, num_bytes: float, link: LinkClass, factor: float = 1.0) -> float:
        """Of one large message from one device to another; `factor` for a slow link, or for those that share it."""
        share = min(SEND_SHARE[link] * drawn(self.seed, f"send {link}", SPREAD), 1.0)
        return SEND_LATENCY_S[link] + num_bytes * factor / (share * self._rate(link))

    def sync_seconds(self, num_bytes: float, link: LinkClass, factor: float = 1.0) -> float:
        """Of a weight sync that moves a model of so many bytes to every unit that uses it."""
        share = min(SYNC_SHARE * drawn(self.seed, f"sync {link}", SPREAD), 1.0)
        return SYNC_FIXED_S + num_bytes * factor / (share * self._rate(link))

    def _rate(self, link: LinkClass) -> float:
        return self.accelerator.node_bytes_s if link is LinkClass.NODE else self.accelerator.network_bytes_s
