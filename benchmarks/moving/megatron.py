"""Megatron-Core dist_checkpointing: save and load of sharded tensors, in its torch_dist format with its default strategies.

It synchronises CUDA on the way, also where there is none; these two calls are answered for it on a machine without GPUs.
All ranks take part, as it works on the default group; those without state bring an empty dictionary.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist

from benchmarks.moving.contest import Job, Outcome
from benchmarks.moving.shapes import Shape
from benchmarks.moving.state import Part

Held = dict[str, tuple[Part, torch.Tensor]]


class MegatronDistCheckpoint:
    """`megatron.core.dist_checkpointing`."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core import dist_checkpointing
        self._checkpointing = dist_checkpointing
        self._tensors: dict[str, torch.Tensor] = {}
        self._is_warm = False

    def prepare(self, job: Job) -> None:
        """Tensors of the source layout, and untouched ones of the target's; the first time a small save and load too."""
        self._job = job
        self._old: Held = {p.key: (p, p.values().clone()) for p in job.state.parts(job.source.seat(job.rank))}
        self._new: Held = {p.key: (p, p.empty()) for p in job.state.parts(job.target.seat(job.rank))}
        if not self._is_warm:
            self._is_warm = True
            old_all, new_all = self._old, self._new
            self._old, self._new = _counters(old_all), _counters(new_all)
            self._save_and_load(f"{job.folder}-warm-up")
            self._old, self._new = old_all, new_all

    def move(self) -> None:
        """Save and load."""
        self._save_and_load(self._job.folder)

    def check(self) -> Outcome:
        """What was loaded, against the oracle's chunks."""
        parts = self._job.state.parts(self._job.target.seat(self._job.rank))
        return Outcome(tuple(part.key for part in parts if not torch.equal(self._tensors[part.key], part.values())))

    def clear(self) -> None:
        """Drop all tensors."""
        self._old, self._new, self._tensors = {}, {}, {}

    def _save_and_load(self, folder: str) -> None:
        rank = dist.get_rank()
        if rank == 0:
            os.makedirs(folder, exist_ok=True)
        dist.barrier()
        with _cuda_calls_answered(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self._checkpointing.save(self._sharded(self._old, self._job.source), folder)
            self._tensors = self._checkpointing.load(self._sharded(self._new, self._job.target), folder)

    def _sharded(self, held: Held, shape: Shape) -> dict[str, object]:
        """The sharded state dict: offsets into the whole tensors, replica 0 for the rank that writes."""
        return {
            key: self._checkpointing.ShardedTensor(
                key=key,
                data=local,
                dtype=local.dtype,
                local_shape=part.shape,
                global_shape=part.tensor.shape,
                global_offset=part.offset,
                axis_fragmentations=None,
                replica_id=_replica(part, shape.replica(self._job.rank)),
            )
            for key, (part, local) in held.items()
        }


def _replica(part: Part, dp_rank: int) -> tuple[int, int, int]:
    """(pp, tp, dp) among the ranks that hold the same elements."""
    return (part.seat.pp_rank if part.is_counter else 0, part.seat.tp_rank if part.tensor.axis is None else 0, dp_rank)


def _counters(held: Held) -> Held:
    return {key: (part, local) for key, (part, local) in held.items() if part.is_counter}


@contextmanager
def _cuda_calls_answered() -> Iterator[None]:
    if torch.cuda.is_available():
        yield
        return
    with (
        mock.patch.object(torch.cuda, "synchronize", return_value=None),
        mock.patch.object(torch.cuda, "current_device", return_value=torch.device("cpu")),
    ):
        yield
