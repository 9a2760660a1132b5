"""DeepSpeed universal checkpointing: save, convert, load, with DeepSpeed's own converter and loader.

    ZeRO-1 optimizer files of each rank -> fragments -> one file per parameter and state -> each target rank's slice

The files that an engine would write are written here in its format, without the model's weights beside the fp32 ones, which
an engine writes too. All ranks share the conversion, which is one process with workers otherwise. Both favour DeepSpeed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.moving.contest import Job, Outcome
from benchmarks.moving.shapes import NUM_RANKS
from benchmarks.moving.state import Part

KINDS = {"": "fp32", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
"""Our suffix of a tensor's key, and DeepSpeed's name for what it is."""

WHOLE_ON_TP = (r".*layernorm\.weight", r"model\.norm\.weight")
CUT_BY_COLUMN = (r".*o_proj\.weight", r".*down_proj\.weight")
"""Patterns by which the converter knows how the slices of a parameter go together; all others are cut by row."""


class UniversalCheckpoint:
    """`deepspeed.checkpoint.ds_to_universal` between a save and `load_hp_checkpoint_state`."""

    def __init__(self) -> None:
        # DeepSpeed reports its accelerator on import, and looks for a CUDA toolkit that a CPU does not need.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            from deepspeed.checkpoint import constants, ds_to_universal, universal_checkpoint, utils
            from deepspeed.utils.tensor_fragment import fragment_address
        self._names, self._converter, self._loader, self._paths = constants, ds_to_universal, universal_checkpoint, utils
        self._fragment = fragment_address
        self._targets: dict[str, Any] = {}

    def prepare(self, job: Job) -> None:
        """The flat partition of each rank's optimizer, as ZeRO-1 holds it, and the parameters to load into."""
        self._job = job
        old, new = job.source.seat(job.rank), job.target.seat(job.rank)
        self._zero = self._partition(job.state.parts(old)) if old is not None else {}
        self._targets = {part.key: self._target(part) for part in job.state.parts(new) if _is_parameter(part)}
        self._counters: dict[str, torch.Tensor] = {}

    def move(self) -> None:
        """Save, convert and load; each step begins when every rank has ended the one before."""
        saved, universal = f"{self._job.folder}/saved", f"{self._job.folder}/universal"
        os.makedirs(saved, exist_ok=True)
        self._save(saved)
        dist.barrier()
        with redirect_stdout(StringIO()):
            self._convert(saved, universal)
        dist.barrier()
        self._load(saved, universal)

    def check(self) -> Outcome:
        """Parameters, moments and counters, against the oracle's chunks."""
        parts = self._job.state.parts(self._job.target.seat(self._job.rank))
        return Outcome(tuple(p.key for p in parts if not torch.equal(self._loaded(p).flatten(), p.values().flatten())))

    def clear(self) -> None:
        """Drop all tensors."""
        self._zero, self._targets, self._counters = {}, {}, {}

    def _loaded(self, part: Part) -> torch.Tensor:
        if part.is_counter:
            return self._counters[part.key]
        name, _, moment = part.key.partition(":")
        loaded: torch.Tensor = self._targets[name]._hp_mapping.optim_fragment[moment] if moment else self._targets[name].data
        return loaded

    def _save(self, folder: str) -> None:
        names, shape, rank = self._names, self._job.source, self._job.rank
        seat = shape.seat(rank)
        if seat is None:
            return
        mp_rank, replica = seat.pp_rank * seat.tp + seat.tp_rank, shape.replica(rank)
        torch.save(self._zero, self._paths.get_zero_ckpt_name_for_rank(folder, replica, mp_rank))
        if replica:
            return
        parts = self._job.state.parts(seat)
        model_state = {
            names.PARAM_SHAPES: [{part.key: torch.Size(part.shape) for part in parts if _is_parameter(part)}],
            names.CHECKPOINT_PARALLEL_DIMS: {names.CHECKPOINT_PP_DEGREE: seat.pp, names.CHECKPOINT_TP_DEGREE: seat.tp},
            names.UNIVERSAL_CHECKPOINT_INFO: self._info(),
            "ds_config": {},
            "client_state": {part.key: part.values().clone() for part in parts if part.is_counter},
        }
        torch.save(model_state, self._paths.get_model_ckpt_name_for_rank(folder, f"{mp_rank:02d}"))

    def _convert(self, saved: str, universal: str) -> None:
        """What `ds_to_universal.main` does, its work items dealt out to all ranks."""
        converter, rank = self._converter, self._job.rank
        checkpoint = converter.DeepSpeedCheckpoint(saved)
        degrees = (checkpoint.pp_degree, checkpoint.tp_degree, checkpoint.dp_degree)
        extract = partial(converter.extract_zero_shards, f"{universal}/tmp", checkpoint)
        for indices in _dealt(product(*map(range, degrees)), rank):
            extract(indices)
        dist.barrier()
        shapes_by_rank, _, _ = converter._aggregate_autoep_zero12_metadata(checkpoint.model_state_metadata)
        shapes = converter._group_per_tp_shapes(shapes_by_rank, checkpoint.pp_degree, checkpoint.tp_degree)
        info = checkpoint.get_checkpoint_info(self._names.UNIVERSAL_CHECKPOINT_INFO)
        merge = partial(converter.merge_tp_slices, info, f"{universal}/zero", f"{universal}/tmp", checkpoint.tp_degree)
        for item in _dealt(sorted(shapes.items()), rank):
            merge(item)

    def _load(self, saved: str, universal: str) -> None:
        seat = self._job.target.seat(self._job.rank)
        if seat is None:
            return
        for name, target in self._targets.items():
            self._loader.load_hp_checkpoint_state(target, f"{universal}/zero/{name}", seat.tp_rank, seat.tp)
        model_state = torch.load(self._paths.get_model_ckpt_name_for_rank(saved, "00"), weights_only=False)
        self._counters = model_state["client_state"]

    def _info(self) -> dict[str, Any]:
        names = self._names
        return {
            names.UNIVERSAL_CHECKPOINT_VERSION_KEY: names.UNIVERSAL_CHECKPOINT_VERSION_VALUE,
            names.TP_REPLICATED_PARAMETER_PATTERNS: list(WHOLE_ON_TP),
            names.PARAMETER_WITH_ROW_PARALLELISM_PATTERNS: list(CUT_BY_COLUMN),
        }

    def _partition(self, parts: list[Part]) -> dict[str, Any]:
        """This rank's piece of the flat state of its seat, and which piece of which parameter is where in it."""
        names, dp, replica = self._names, self._job.source.dp, self._job.source.replica(self._job.rank)
        flat: dict[str, torch.Tensor] = {}
        for moment, kind in KINDS.items():
            chosen = [part for part in parts if not part.is_counter and part.key.partition(":")[2] == moment]
            flat[kind] = torch.cat([part.values().flatten() for part in chosen])
        total = flat["fp32"].numel()
        low, high = replica * total // dp, (replica + 1) * total // dp
        mapping, start = {}, 0
        for part in filter(_is_parameter, parts):
            stop = start + prod(part.shape)
            first, last = max(start, low), min(stop, high)
            if first < last:
                mapping[part.key] = self._fragment(numel=last - first, start=first - low)
            start = stop
        piece = {kind: values[low:high].clone() for kind, values in flat.items()}
        moments = {kind: piece[kind] for kind in ("exp_avg", "exp_avg_sq")}
        optimizer = {
            names.BASE_OPTIMIZER_STATE: {"state": {0: moments}},
            names.SINGLE_PARTITION_OF_FP32_GROUPS: [piece["fp32"]],
            names.PARAM_SLICE_MAPPINGS: [mapping],
            names.GROUP_PADDINGS: [0],
            names.PARTITION_COUNT: [dp],
            names.ZERO_STAGE: 1,
        }
        return {names.OPTIMIZER_STATE_DICT: optimizer}

    def _target(self, part: Part) -> Any:
        """A parameter as DeepSpeed's loader expects it: with its fp32 fragment, and how its tensor parallelism cuts."""
        parameter: Any = torch.nn.Parameter(part.empty(), requires_grad=False)
        flat, axis = parameter.data.view(-1), part.tensor.axis
        address = self._fragment(numel=flat.numel(), start=0)
        parameter._hp_mapping = SimpleNamespace(lp_fragment_address=address, get_hp_fragment=lambda: flat, optim_fragment={})
        meta: dict[str, Any] = {"partition_dim": axis, "logical_shape": part.tensor.shape, "replicated": axis is None}
        if axis is not None:
            seats = [part.seat._replace(tp_rank=tp_rank) for tp_rank in range(part.seat.tp)]
            meta["partition_sizes"] = tuple(Part(part.tensor, seat).shape[axis] for seat in seats)
        setattr(parameter, self._names.DS_AUTOTP_UC_META, meta)
        return parameter


def _is_parameter(part: Part) -> bool:
    return ":" not in part.key and not part.is_counter


def _dealt(items: Iterable[Any], rank: int) -> list[Any]:
    return list(items)[rank::NUM_RANKS]
