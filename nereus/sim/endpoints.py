"""The endpoints, the job and the planner of a simulated job, in virtual time: all ports of a Driver.

    verb -> how long it takes in this world -> a fact, that much later

Shards have no values here: a digest counts elements under a hash of the tensor's name, which adds up over boxes like a real
one, so that a box that was lost or came twice is seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias
from zlib import crc32

from nereus.control.checkpoint import StageDigests
from nereus.control.events import (
    Committed,
    DeviceReady,
    DigestsTaken,
    Installed,
    OpCompleted,
    PlanReady,
    Quiesced,
    Seeded,
    Settled,
    StateRead,
    StateSealed,
    StateWritten,
)
from nereus.control.report import Release
from nereus.emu.digest import BoxDigest
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.layout import Layout, OptimizerShard
from nereus.layout.saving import shares
from nereus.layout.tensors import CanonicalTensor
from nereus.policy.proposal import Proposal, propose
from nereus.policy.snapshot import Snapshot
from nereus.sim.facts import Facts
from nereus.sim.truth import Truth
from nereus.spec.hardware import LinkClass
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Op, Program
from nereus.transition.traffic import op_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """How long things take in this world that are not model-stages."""

    start_s: float = 30.0
    """From a device's arrival until its worker is ready: container, imports, CUDA context. Nothing waits for it."""
    group_s: float = 0.15
    """To make one communicator; an endpoint makes its groups one after the other."""
    op_s: float = 0.02
    """Fixed, of each operation: submitting it and telling of its end."""
    hash_bytes_s: float = 400e9
    """Hashing shards, a pass over device memory."""
    disk_bytes_s: float = 1e9
    """Of each endpoint, to and from a file system that all nodes share: what a cluster's storage gives one of many."""
    plan_s: float = 0.5
    """The planner's answer, after a request."""


Choose: TypeAlias = Callable[[Snapshot, int], tuple[Proposal, ...]]
"""What a policy puts before the admission rule: the best proposals on a snapshot."""


class SimPorts:
    """The EndpointPort, JobPort, CheckpointPort and PlannerPort of one simulated job."""

    def __init__(
        self,
        facts: Facts,
        states: Mapping[str, StateSpec],
        truth: Truth,
        speeds: Speeds,
        choose: Choose = propose,
    ) -> None:
        self.released: Release | None = None
        self.stopped: str | None = None
        self.starts_at_once = False
        """Whether a worker's start takes no time: that of the whole job is counted elsewhere."""
        self._facts, self._states, self._truth, self._speeds, self._choose = facts, states, truth, speeds, choose
        self._device_of: dict[EndpointId, DeviceId] = {}
        self._births: dict[DeviceId, int] = {}
        self._groups: defaultdict[EndpointId, set[GroupKey]] = defaultdict(set)

    # JobPort

    def spawn(self, devices: Iterable[DeviceId]) -> None:
        """See JobPort."""
        for device in devices:
            self._births[device] = self._births.get(device, -1) + 1
            endpoint = f"d{device}.{self._births[device]}"
            self._device_of[endpoint] = device
            ready = DeviceReady(device=device, endpoint=endpoint, peak_flops=0.0)
            self._facts.post(0.0 if self.starts_at_once else self._speeds.start_s, ready)

    def retire(self, endpoints: Iterable[EndpointId]) -> None:
        """See JobPort."""
        for endpoint in endpoints:
            self._groups.pop(endpoint, None)

    def seed(self, emus: Iterable[Emu]) -> None:
        """See JobPort."""
        for endpoint in sorted({endpoint for emu in emus for endpoint in emu.endpoints}):
            self._facts.post(0.0, Seeded(endpoint=endpoint))

    def quiesce(self, epoch: int, emus: Iterable[Emu], deadline_s: float) -> None:
        """See JobPort: the loop is held at a boundary, so nothing computes."""
        for endpoint in sorted({endpoint for emu in emus for endpoint in emu.endpoints}):
            self._facts.post(0.0, Quiesced(endpoint=endpoint, epoch=epoch))

    def release(self, release: Release) -> None:
        """See JobPort."""
        self.released = release

    def stop(self, reason: str) -> None:
        """See JobPort."""
        self.stopped = reason

    # CheckpointPort

    def save(self, tag: str, emus: Iterable[Emu], endpoints: Iterable[EndpointId]) -> None:
        """See CheckpointPort."""
        parts = shares(self._states, tuple(emus))
        for endpoint in endpoints:
            mine = parts[endpoint]
            size = sum(part.box.volume * part.tensor.item_bytes for part in mine)
            fact = StateWritten(
                endpoint=endpoint,
                tag=tag,
                file=endpoint,
                num_bytes=size,
                sha256="",
                digests=tuple((part.unit.stage, _digest(part.tensor, part.box)) for part in mine),
            )
            self._facts.post(self._speeds.op_s + size / self._speeds.disk_bytes_s, fact)

    def seal(self, tag: str, step: int, written: Iterable[StateWritten], digests: StageDigests) -> None:
        """See CheckpointPort."""
        self._facts.post(self._speeds.op_s, StateSealed(tag=tag, folder=f"/checkpoints/{tag}-step-{step}"))

    def restore(self, epoch: int, folder: str, emus: Iterable[Emu]) -> None:
        """See CheckpointPort."""
        sizes: defaultdict[EndpointId, int] = defaultdict(int)
        for emu in emus:
            for rank, endpoint in enumerate(emu.endpoints):
                sizes[endpoint] += self._states[emu.stage].shard_bytes(emu.layout, rank, optimizer=emu.optimizer)
        for endpoint, size in sizes.items():
            fact = StateRead(endpoint=endpoint, epoch=epoch, num_bytes=size)
            self._facts.post(self._speeds.op_s + size / self._speeds.disk_bytes_s, fact)

    # PlannerPort

    def propose(self, cycle: int, snapshot: Snapshot, top: int) -> None:
        """See PlannerPort."""
        proposals, current = self._choose(snapshot, top), snapshot.l_step_s()
        answer = PlanReady(cycle=cycle, proposals=proposals, current_l_step_s=current, seconds=self._speeds.plan_s)
        self._facts.post(self._speeds.plan_s, answer)

    # EndpointPort

    def install(self, programs: Iterable[Program]) -> None:
        """See EndpointPort."""
        for program in programs:
            known = self._groups[program.endpoint]
            made = [key for key in program.groups if key not in known]
            known.update(made)
            took = self._speeds.group_s * len(made)
            fact = Installed(
                endpoint=program.endpoint,
                epoch=program.epoch,
                setup_s=took,
                groups_made=len(made),
                groups_reused=len(program.groups) - len(made),
            )
            self._facts.post(took, fact)

    def run(self, op: Op) -> None:
        """See EndpointPort."""
        moved = op_bytes(op)
        took, received = self._speeds.op_s + self._moving_s(moved), defaultdict[EndpointId, int](int)
        for (source, target), size in moved.items():
            received[target] += size if source != target else 0
        for endpoint in op.members:
            done = OpCompleted(endpoint=endpoint, op=op.id, bytes_received=received[endpoint], seconds=took)
            self._facts.post(took, done)

    def digest(self, tag: str, emus: Iterable[Emu]) -> None:
        """See EndpointPort."""
        held: defaultdict[EndpointId, list[Emu]] = defaultdict(list)
        for emu in emus:
            for endpoint in emu.endpoints:
                held[endpoint].append(emu)
        for endpoint, units in held.items():
            digests, size = [], 0
            for emu in units:
                state, rank = self._states[emu.stage], emu.rank_of(endpoint)
                digests.append((emu.unit, _digests(state, emu.layout, rank, emu.optimizer)))
                size += state.shard_bytes(emu.layout, rank, optimizer=emu.optimizer)
            fact = DigestsTaken(endpoint=endpoint, tag=tag, digests=tuple(digests))
            self._facts.post(size / self._speeds.hash_bytes_s, fact)

    def bind(self, epoch: int, emus: tuple[Emu, ...], endpoints: Iterable[EndpointId], keep: frozenset[GroupKey]) -> None:
        """See EndpointPort."""
        for endpoint in endpoints:
            self._groups[endpoint] &= keep
            self._facts.post(self._speeds.op_s, Committed(endpoint=endpoint, epoch=epoch, peak_bytes=0))

    def abort(self, epoch: int, members: Iterable[EndpointId]) -> None:
        """See EndpointPort: what was under way counts as not done, and what it would have told comes too late."""
        for endpoint in members:
            self._groups[endpoint].clear()
            self._facts.post(self._speeds.op_s, Settled(endpoint=endpoint, epoch=epoch, done=()))

    def _moving_s(self, moved: Mapping[tuple[EndpointId, EndpointId], int]) -> float:
        """As long as the busiest device sends or receives, over the network or within its node."""
        busy: defaultdict[tuple[DeviceId, LinkClass, bool], int] = defaultdict(int)
        node_of = self._truth.node_of
        for pair, size in moved.items():
            source, target = (self._device_of[endpoint] for endpoint in pair)
            if source != target:
                link = LinkClass.NODE if node_of[source] == node_of[target] else LinkClass.NETWORK
                busy[source, link, True] += size
                busy[target, link, False] += size
        return max((self._truth.move_seconds(size, link, device) for (device, link, _), size in busy.items()), default=0.0)


@lru_cache(maxsize=1024)
def _digests(state: StateSpec, layout: Layout, rank: int, optimizer: OptimizerShard) -> tuple[BoxDigest, ...]:
    """What a rank would hash: additive over boxes, different for every tensor."""
    found = []
    for tensor, boxes in state.shards(layout, rank, optimizer).items():
        found += [_digest(tensor, box) for box in boxes]
    return tuple(found)


def _digest(tensor: CanonicalTensor, box: Box) -> BoxDigest:
    seed = crc32(str(tensor.ref).encode()) << 1 | 1
    return BoxDigest(tensor.ref, box, (box.volume, box.volume * seed % 2**64))
