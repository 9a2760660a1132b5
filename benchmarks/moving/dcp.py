"""PyTorch DCP: save in the source layout, load in the target layout, through a folder in memory.

Tensors are DTensors on the (dp, tp) mesh of their pipeline stage, cut as DTensor cuts; replicas are told as such, so DCP
writes each element once. The target's tensors are made, but not touched, before the clock starts.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from benchmarks.moving.contest import Job, Outcome
from benchmarks.moving.shapes import NUM_RANKS, Shape
from benchmarks.moving.state import Part

States = dict[str, torch.Tensor]


class TorchDcp:
    """`torch.distributed.checkpoint` among the ranks of each layout."""

    def __init__(self) -> None:
        self._groups = {size: dist.new_group(range(size)) for size in range(1, NUM_RANKS)}
        self._old: States = {}
        self._new: States = {}

    def prepare(self, job: Job) -> None:
        """Meshes, and the tensors of both layouts."""
        self._job = job
        for shape, tensors in ((job.source, self._old), (job.target, self._new)):
            mesh = _mesh(shape)
            for part in job.state.parts(shape.seat(job.rank)):
                tensors[part.key] = _sharded(part, mesh, part.values().clone() if tensors is self._old else part.empty())

    def move(self) -> None:
        """Save and load; nobody loads before everybody has saved."""
        job = self._job
        if self._old:
            save(self._old, checkpoint_id=job.folder, process_group=self._group(job.source), no_dist=False)
        dist.barrier()
        if self._new:
            load(self._new, checkpoint_id=job.folder, process_group=self._group(job.target), no_dist=False)

    def check(self) -> Outcome:
        """What was loaded, against the oracle's chunks."""
        parts = self._job.state.parts(self._job.target.seat(self._job.rank))
        return Outcome(tuple(part.key for part in parts if not torch.equal(_local(self._new[part.key]), part.values())))

    def clear(self) -> None:
        """Drop all tensors; meshes stay."""
        self._old, self._new = {}, {}

    def _group(self, shape: Shape) -> ProcessGroup | None:
        return self._groups.get(shape.size)


@cache
def _mesh(shape: Shape) -> DeviceMesh:
    ranks = torch.arange(shape.size).view(shape.dp, shape.pp, shape.tp)
    return DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "pp", "tp"))


def _sharded(part: Part, mesh: DeviceMesh, local: torch.Tensor) -> torch.Tensor:
    """A DTensor over the stage's ranks; counters stay plain, as every rank has them."""
    if part.is_counter:
        return local
    axis, shape = part.tensor.axis, torch.Size(part.tensor.shape)
    placements = (Replicate(), Replicate() if axis is None else Shard(axis))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh["dp", "tp"], placements, run_check=False, shape=shape, stride=stride)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
