"""Raw Gloo: the bytes that Nereus moves, between the same ranks, with nothing to plan, set up, pack or unpack.

One buffer per ordered pair of ranks, touched beforehand; all sends and receives are posted at once over a group that is
already connected. It is as fast as Gloo moves these bytes here.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.moving.contest import Job, Outcome


class RawGloo:
    """Messages over the default group."""

    def __init__(self) -> None:
        self._sends: dict[int, torch.Tensor] = {}
        self._receives: dict[int, torch.Tensor] = {}

    def prepare(self, job: Job) -> None:
        """Buffers, filled with the sender's rank or with what no rank is, and every connection used once."""
        for (source, target), num_bytes in sorted(job.links.items()):
            if source == job.rank:
                self._sends[target] = torch.full((num_bytes,), source, dtype=torch.uint8)
            if target == job.rank:
                self._receives[source] = torch.full((num_bytes,), 255, dtype=torch.uint8)
        self._exchange({peer: t[:1] for peer, t in self._sends.items()}, {p: t[:1] for p, t in self._receives.items()})

    def move(self) -> None:
        """Exchange everything."""
        self._exchange(self._sends, self._receives)

    def check(self) -> Outcome:
        """Whether each buffer came from its sender."""
        wrong = [source for source, buffer in self._receives.items() if not bool((buffer == source).all())]
        return Outcome(tuple(f"from {source}" for source in wrong))

    def clear(self) -> None:
        """Drop the buffers."""
        self._sends, self._receives = {}, {}

    def _exchange(self, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor]) -> None:
        works = [dist.irecv(buffer, source) for source, buffer in receives.items()]
        works += [dist.isend(buffer, target) for target, buffer in sends.items()]
        for work in works:
            assert work is not None
            work.wait()
