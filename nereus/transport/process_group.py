"""The few calls of torch.distributed that have no public name, one small function each, pinned by a test.

A process group is made over its own prefix of a store, for its members only; nothing is registered globally and there
is no default group, so a framework's own groups stay untouched. The backend follows from the device: Gloo on CPU, NCCL
on CUDA. The NCCL branches are written from torch's source.
"""

from __future__ import annotations

from datetime import timedelta

import torch
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Store, Work  # type: ignore[attr-defined]

POISON_TAG = 0x7E11
"""Tag of the receive that nobody answers; a tag that a real message used would let the poison take that message."""

POISON_WAIT = timedelta(milliseconds=1)
"""How long the poison waits. Any time-out breaks the Gloo context; a longer one only makes an abort slower."""


def new_process_group(name: str, store: Store, rank: int, size: int, device: torch.device, timeout_s: float) -> ProcessGroup:
    """Make a group of `size` members; every member calls this with the same name. Blocks until all have."""
    prefixed, timeout = PrefixStore(name, store), timedelta(seconds=timeout_s)
    group = ProcessGroup(prefixed, rank, size)
    if device.type == "cpu":
        gloo = ProcessGroupGloo(prefixed, rank, size, timeout)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        group._register_backend(device, ProcessGroup.BackendType.GLOO, gloo)
        return group
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    nccl = ProcessGroupNCCL(prefixed, rank, size, options)
    group._set_default_backend(ProcessGroup.BackendType.NCCL)
    group._register_backend(device, ProcessGroup.BackendType.NCCL, nccl)
    nccl.eager_connect_single_device(device)
    return group


def break_process_group(group: ProcessGroup, rank: int, device: torch.device) -> None:
    """Make everything that is blocked on the group fail, here and on its other members. Called from any thread.

    Gloo has no abort that unblocks; a receive that times out breaks its whole context, which does (observed behaviour).
    """
    if device.type != "cpu":
        group.abort()
        return
    try:
        group.recv([torch.zeros(1)], (rank + 1) % group.size(), POISON_TAG).wait(POISON_WAIT)
    except RuntimeError:
        return


def close_process_group(group: ProcessGroup, device: torch.device) -> None:
    """Give back what a group holds once nothing runs on it. Gloo closes with its last reference."""
    if device.type != "cpu":
        group.shutdown()


def start_batch(group: ProcessGroup, device: torch.device) -> None:
    """Collect the sends and receives that follow into one launch: NCCL would deadlock on them one by one."""
    if device.type != "cpu":
        group._start_coalescing(device)


def end_batch(group: ProcessGroup, device: torch.device) -> Work | None:
    """Launch what was collected; None where each send and receive has its own work handle."""
    return group._end_coalescing(device) if device.type != "cpu" else None


def clone_store(store: Store) -> Store:
    """A second client of the same store: a client serves one call at a time, and a blocked wait would block an abort."""
    clone: Store = store.clone()  # type: ignore[attr-defined]
    return clone
