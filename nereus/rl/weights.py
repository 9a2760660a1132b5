"""Where a model-stage's first parameters come from: a seed, or a safetensors file.

    WeightSource.read(tensor, box) -> the values of that box       called once per shard when a first unit is made

A source never sees a layout: it answers for boxes of canonical tensors, so every rank reads just its own part and any cut
gives the values of the whole. Later units get their parameters from other units, by moves.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

import torch

from nereus.errors import TensorRuleError, UserError
from nereus.layout.box import Box
from nereus.layout.dense import EMBED, HEAD
from nereus.layout.tensors import CanonicalTensor, Kind
from nereus.rl.noise import normal
from nereus.spec.model import ModelShape

WEIGHT_STD = 0.02
"""Standard deviation of projections and heads, as in GPT-2: the first logits are near zero, so a run starts from nearly
uniform sampling. A head of std 0.1 or more starts from a policy that is sure of itself and explores too little."""

EMBED_STD = 0.5
"""Standard deviation of an untied embedding: the layers then write small corrections onto large, distinct token vectors,
from which GRPO learns a class task in 48 steps. A tied embedding is also the head, and takes `WEIGHT_STD`."""

NORM_ENDINGS = ("norm.weight", "layernorm.weight")
"""Ends of the names of RMSNorm scales, which start at one."""

RESIDUAL_ENDINGS = ("o_proj.weight", "down_proj.weight")
"""Ends of the names of projections that write to the residual stream: scaled by 1 / sqrt(2 * num_layers), so that its
variance doesn't grow with depth (GPT-2)."""


class WeightSource(Protocol):
    """First values of parameters. Called by the worker when it opens a unit that has no unit to copy from; it may block."""

    def read(self, tensor: CanonicalTensor, box: Box) -> torch.Tensor:
        """The values of a box, contiguous, of the box's shape and the tensor's dtype, on the CPU; the caller owns them.

        Raises UserError for a source that lacks the tensor, TensorRuleError for a tensor that isn't a known parameter.
        """


class RandomWeights:
    """Normal values of (seed, tensor name, element): the same for every layout and, up to rounding, for every dtype."""

    def __init__(self, seed: int, model: ModelShape) -> None:
        self._seed = seed
        self._model = model

    def read(self, tensor: CanonicalTensor, box: Box) -> torch.Tensor:
        """See `WeightSource.read`."""
        dtype = _parameter_dtype(tensor)
        if tensor.name.endswith(NORM_ENDINGS):
            return torch.ones(box.shape, dtype=dtype)
        values = normal(self._seed, tensor.name, element_indices(tensor.shape, box))
        return values.mul_(self._std(tensor)).to(dtype)

    def _std(self, tensor: CanonicalTensor) -> float:
        if len(tensor.shape) != 2:
            raise TensorRuleError(f"tensor {tensor.name}: no rule for first values of shape {tensor.shape}; add one here")
        if tensor.name == EMBED and not self._model.tie_embeddings:
            return EMBED_STD
        if tensor.name.endswith(RESIDUAL_ENDINGS):
            return WEIGHT_STD / math.sqrt(2 * self._model.num_layers)
        if tensor.name in (EMBED, HEAD) or tensor.name.endswith("_proj.weight"):
            return WEIGHT_STD
        raise TensorRuleError(f"tensor {tensor.name}: no rule for the first values of a tensor of this name; add one here")


class SafetensorsWeights:
    """Slices of one safetensors file under HF names, read without loading the file whole. It opens the file in `read`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, tensor: CanonicalTensor, box: Box) -> torch.Tensor:
        """See `WeightSource.read`; values are converted to the tensor's dtype."""
        dtype = _parameter_dtype(tensor)
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise UserError("reading weights needs safetensors: pip install 'nereus-rl[smollm2]'") from error
        try:
            with safe_open(self._path, framework="pt") as file:
                if tensor.name not in file.keys():  # noqa: SIM118 - safe_open is no mapping
                    raise UserError(
                        f"{self._path} has no tensor {tensor.name}; the model's shape or tie_embeddings must match the file"
                    )
                stored = file.get_slice(tensor.name)
                if tuple(stored.get_shape()) != tensor.shape:
                    raise UserError(
                        f"{self._path}: {tensor.name} has shape {tuple(stored.get_shape())}, the model's shape asks for "
                        f"{tensor.shape}; correct the model section of the job"
                    )
                part: torch.Tensor = stored[box.slices((0,) * len(tensor.shape))]
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot read weights from {self._path}: {error}; name a readable safetensors file") from error
        return part.to(dtype).contiguous()


def element_indices(shape: tuple[int, ...], box: Box) -> torch.Tensor:
    """Row-major indices, in the whole tensor, of the elements of a box: int64, of the box's shape."""
    indices = torch.zeros((), dtype=torch.int64)
    for extent, low, high in zip(shape, box.low, box.high, strict=True):
        indices = (indices * extent)[..., None] + torch.arange(low, high)
    return indices


def _parameter_dtype(tensor: CanonicalTensor) -> torch.dtype:
    if tensor.kind is not Kind.PARAMETER:
        raise TensorRuleError(f"tensor {tensor.ref}: a weight source holds parameters only; other kinds start at zero")
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return dtype
