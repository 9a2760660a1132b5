"""One communicator: collectives and messages among the endpoints of a group, each wait bounded by a time-out.

Members are named by endpoint, never by rank of a world. A communicator belongs to one lane and is used by its thread
only (two threads on one group give wrong sums without an error). A group of one does nothing, so that callers need no
special case. Failures of the backend are raised as it raises them (RuntimeError).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal

import torch
from torch.distributed import ProcessGroup, ReduceOp, Work

from nereus.errors import StoreError
from nereus.layout.catalog import EndpointId
from nereus.transition.collectives import GroupKey
from nereus.transport.process_group import end_batch, start_batch

Reduction = Literal["sum", "max"]

POLL_S = 0.0002
"""Pause between two looks at a kernel's progress; longer adds to every movement, shorter burns the core."""


class Handle:
    """A send or receive in flight. It keeps the tensor alive; `wait` must be called before the tensor is used again."""

    def __init__(self, work: Work, tensors: list[torch.Tensor], timeout_s: float) -> None:
        self.tensors = tensors
        self._work, self._timeout_s = work, timeout_s

    def wait(self) -> None:
        """Gloo: block until done. NCCL: order the current stream behind it. Raises RuntimeError on failure or time-out."""
        self._work.wait(timedelta(seconds=self._timeout_s))
        self.tensors = []

    def finish(self) -> None:
        """Block until the tensors are final for the host too; on Gloo the same as `wait`."""
        if self.tensors and self.tensors[0].is_cuda:
            deadline = time.monotonic() + self._timeout_s
            while not self._work.is_completed():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"a message was not done within {self._timeout_s} s")
                time.sleep(POLL_S)
        self.wait()


class Batch:
    """Sends and receives that are posted together and waited for together."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.handles: list[Handle] = []

    def send(self, tensor: torch.Tensor, to_endpoint: EndpointId, tag: int) -> None:
        self.handles.append(self._communicator.send(tensor, to_endpoint, tag))

    def recv(self, tensor: torch.Tensor, from_endpoint: EndpointId, tag: int) -> None:
        self.handles.append(self._communicator.recv(tensor, from_endpoint, tag))

    def finish(self) -> None:
        """Block until every message has arrived."""
        for handle in self.handles:
            handle.finish()


class Communicator:
    """A group of endpoints that exchange tensors. All members call each collective, in the same order."""

    def __init__(
        self, key: GroupKey, endpoint: EndpointId, group: ProcessGroup | None, device: torch.device, timeout_s: float
    ) -> None:
        self.key = key
        self.members = key.members
        self.rank = key.members.index(endpoint)
        self.process_group = group
        """None for a group of one."""
        self.device = device
        self.timeout_s = timeout_s

    @property
    def size(self) -> int:
        return len(self.members)

    def rank_of(self, endpoint: EndpointId) -> int:
        """The rank of a member. Raises StoreError for another endpoint."""
        if endpoint not in self.members:
            raise StoreError(f"endpoint {endpoint} is not in group {list(self.members)}")
        return self.members.index(endpoint)

    def all_reduce(self, tensor: torch.Tensor, op: Reduction = "sum") -> None:
        """Replace a contiguous tensor by the sum or maximum over the members."""
        if self.process_group is not None:
            reduce = ReduceOp.SUM if op == "sum" else ReduceOp.MAX
            self._wait(self.process_group.allreduce([tensor], reduce))

    def largest(self, value: int) -> int:
        """The largest of the members' values."""
        tensor = torch.tensor(value, dtype=torch.int64, device=self.device)
        self.all_reduce(tensor, "max")
        return int(tensor)

    def all_gather(self, out: list[torch.Tensor], tensor: torch.Tensor) -> None:
        """Fill `out`, one tensor per member in rank order, all of the shape of `tensor`."""
        if self.process_group is None:
            out[0].copy_(tensor)
        else:
            self._wait(self.process_group.allgather([out], [tensor]))

    def broadcast(self, tensor: torch.Tensor, root_endpoint: EndpointId) -> None:
        """Replace `tensor` by the root's."""
        root = self.rank_of(root_endpoint)
        if self.process_group is not None:
            self._wait(self.process_group.broadcast(tensor, root))

    def send(self, tensor: torch.Tensor, to_endpoint: EndpointId, tag: int) -> Handle:
        """Start to send a contiguous tensor. Wait for the handle after the receives: Gloo's send waits for its peer's."""
        return Handle(self._group().send([tensor], self._peer(to_endpoint), tag), [tensor], self.timeout_s)

    def recv(self, tensor: torch.Tensor, from_endpoint: EndpointId, tag: int) -> Handle:
        """Start to receive into a contiguous tensor; messages of one tag arrive in the order in which they were sent."""
        return Handle(self._group().recv([tensor], self._peer(from_endpoint), tag), [tensor], self.timeout_s)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Post sends and receives as one launch; call `finish` of the batch after the block."""
        batch, group = Batch(self), self._group()
        start_batch(group, self.device)
        yield batch
        work = end_batch(group, self.device)
        if work is not None:
            tensors = [tensor for handle in batch.handles for tensor in handle.tensors]
            batch.handles = [Handle(work, tensors, self.timeout_s)]

    def barrier(self) -> None:
        """Return when every member has called it."""
        token = torch.zeros(1, device=self.device)
        self.all_reduce(token)
        token.item()

    def _wait(self, work: Work) -> None:
        work.wait(timedelta(seconds=self.timeout_s))

    def _group(self) -> ProcessGroup:
        if self.process_group is None:
            raise StoreError(f"group {list(self.members)} has one member: there is nobody to send to")
        return self.process_group

    def _peer(self, endpoint: EndpointId) -> int:
        peer = self.rank_of(endpoint)
        if peer == self.rank:
            raise StoreError(f"endpoint {endpoint} sends to itself; what is resident is copied, not sent")
        return peer
