"""The degrees of parallelism and the batches that are tried for one holder on one kind of devices.

TP in powers of two inside a node (or, where asked for, over several), PP in powers of two up to the layers, EP in powers of
two that divide the experts, every DP that divides the sequences (of generation, which need not divide them, powers of two,
three times those, and as many as there are); micro-batches, recomputation and offload; of generation how many sequences at
a time. A pin takes the place of what it settles, so a pinned degree may be one that is not tried by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from nereus.cost.execution import Execution, Offload, Recompute
from nereus.planner.quanta import across_nodes, inside_nodes, lying
from nereus.spec.decoder import Decoder, ep_degrees, tp_degrees
from nereus.spec.outline import Nodes, Sequences
from nereus.spec.pins import Pin

WAVES = (1, 2, 4, 8, 16, 32)
"""Waves in which a generation replica may work through its sequences: more waves take less KV memory. A ladder in absolute
sequences, so that more memory never makes a plan slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """What is tried for one holder on one kind."""

    decoder: Decoder
    groups: tuple[Nodes, ...]
    """The node groups of the kind."""
    workload: Sequences
    micro_batches: tuple[int, ...]
    trains: bool
    generates: bool
    pin: Pin
    across: bool = False
    """Whether TP groups lie over several nodes, rather than inside them."""

    def degrees(self) -> Iterator[tuple[int, int, int, int]]:
        """(tp, pp, dp, ep) that the devices have room for."""
        for tp in self._tp():
            room = self.num_devices // tp if self.across else sum(g.count * (g.devices // tp) for g in self.groups)
            for ep in self._ep(room):
                for pp in self._pp(min(self.decoder.num_layers, room // ep)):
                    most = min(room // (pp * ep), self.workload.global_batch // ep)
                    yield from ((tp, pp, dp, ep) for dp in self._dp(tp * pp * ep, most, ep))

    def _tp(self) -> Iterator[int]:
        most = self.num_devices if self.across else max(group.devices for group in self.groups)
        legal = tp_degrees(self.decoder, most)
        yield from (tp for tp in legal if (tp & (tp - 1) == 0 if self.pin.tp is None else tp == self.pin.tp))

    @property
    def num_devices(self) -> int:
        """Of the kind."""
        return sum(group.count * group.devices for group in self.groups)

    def quanta(self, run: Execution) -> Iterator[tuple[int, Execution]]:
        """(placement quantum, run with the links that it promises) of one way to run."""
        if self.across:
            return across_nodes(run, [group.devices for group in self.groups])
        return inside_nodes(run, self._num_nodes, trains=self.trains)

    def lying(self, run: Execution, in_nodes: Sequence[int]) -> Execution:
        """One way to run with the links that it has where so many of its devices lie in each node."""
        return lying(run, in_nodes, self._num_nodes, trains=self.trains)

    @property
    def _num_nodes(self) -> int:
        return sum(group.count for group in self.groups)

    def _ep(self, most: int) -> Iterator[int]:
        legal = ep_degrees(self.decoder, most)
        yield from (ep for ep in legal if (ep & (ep - 1) == 0 if self.pin.ep is None else ep == self.pin.ep))

    def _pp(self, most: int) -> Iterator[int]:
        powers = (1 << exponent for exponent in range(most.bit_length()))
        yield from (pp for pp in (powers if self.pin.pp is None else (self.pin.pp,)) if pp <= most)

    def _dp(self, devices: int, most: int, ep: int) -> Iterator[int]:
        """DP degrees of EMUs of so many devices, with `ep` parts of a replica's sequences."""
        tried: Iterator[int] = (dp for dp in range(1, most + 1) if self._rows % (dp * ep) == 0)
        if self.generates:
            tried = (dp for dp in range(1, most + 1) if dp == most or _is_round(dp))
        if self.pin.dp is not None:
            tried = iter((self.pin.dp,))
        elif self.pin.devices is not None:
            tried = iter((len(self.pin.devices) // devices,))
        whole = len(self.pin.devices or ())
        yield from (dp for dp in tried if 1 <= dp <= most and whole in (0, dp * devices))

    @property
    def _rows(self) -> int:
        """Sequences of one pass, over all replicas: of one update where it trains."""
        return self.workload.global_batch // (self.workload.updates_per_step if self.trains else 1)

    def ways(self, run: Execution) -> Iterator[Execution]:
        """Micro-batches, recomputation and offload; of generation, how many sequences at a time."""
        for micro_batch in self._together(run) if self.generates else self._micro_batches(run):
            for recompute in self._recompute() if self.trains else (Recompute.NONE,):
                for offload in self._offloads():
                    yield replace(run, micro_batch=micro_batch, recompute=recompute, offload=offload)

    def _offloads(self) -> Iterator[Offload]:
        """What may be kept on the hosts, where these have memory for it."""
        offered = [Offload.NONE]
        if any(group.host_memory for group in self.groups) and not self.generates:
            offered.append(Offload.OPTIMIZER if self.trains else Offload.PARAMETERS)
        yield from (offload for offload in offered if self.pin.offload in (None, offload))

    def zero1(self, shares: int) -> bool:
        """Whether training over so many parts of the sequences shards its optimizer; an impossible pin leaves no ways."""
        return self.trains and shares > 1 and self.pin.zero1 is not False

    def _together(self, run: Execution) -> Iterator[int]:
        """Sequences that a generation replica works on at the same time."""
        most = ceil(run.sequences / run.shares)
        if self.pin.micro_batch is None:
            yield from sorted({max(1, most // waves) for waves in WAVES}, reverse=True)
        elif self.pin.micro_batch <= most:
            yield self.pin.micro_batch

    def _micro_batches(self, run: Execution) -> Iterator[int]:
        rows = self._rows / run.shares
        if self.trains and self.pin.zero1 and not run.zero1:
            return
        for micro_batch in self.micro_batches if self.pin.micro_batch is None else (self.pin.micro_batch,):
            if rows % micro_batch == 0 and rows >= micro_batch:
                yield micro_batch

    def _recompute(self) -> tuple[Recompute, ...]:
        both = (Recompute.NONE, Recompute.FULL)
        return both if self.pin.recompute is None else (both[self.pin.recompute],)


def _is_round(degree: int) -> bool:
    """A power of two, or three times one."""
    part = degree // 3 if degree % 3 == 0 else degree
    return part & (part - 1) == 0
