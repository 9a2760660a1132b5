"""Memory of one device by component, from shapes: what a model-stage keeps, what is live while it computes.

    parameters + gradients + optimizer + activations (micro-batches in flight) + logits + KV cache + sends + workspace

Bytes as allocated by shape, times one learnt scale per component (fragmentation, copies that a framework makes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil

import numpy as np
from numpy.typing import NDArray

from nereus.cost.execution import Execution, Offload, Recompute
from nereus.cost.fit import Vector, fit
from nereus.cost.generation import PREFILL_TOKENS
from nereus.cost.layer import Architecture
from nereus.cost.training import fullest_rank, rank_parameters, split_layers, updated_parameters

MASTER_BYTES = 12
"""Per parameter of mixed-precision AdamW: a float32 master and two float32 moments."""

LOGIT_COPIES_BYTES = 8
"""Per local logit of one micro-batch: in half precision, in float32, and the half-precision gradient."""

WORKSPACE_BYTES = 2**30
"""Nominal workspaces of libraries, communicator buffers and contexts that an allocator counts."""


class Component(StrEnum):
    """What memory is used for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    """Kept by autograd inside TP regions."""
    ACTIVATIONS_OUTSIDE = "activations_outside"
    """Kept outside of them: sharded only under sequence parallelism."""
    LOGITS = "logits"
    KV_CACHE = "kv_cache"
    SENDS = "sends"
    """Buffers of pipeline hops, and of the all-to-alls of expert parallelism."""
    WORKSPACE = "workspace"
    RESIDENT = "resident"
    """Idle model-stages on the same device."""


PARTS = tuple(Component)
"""The columns of all arrays of components; iterating over an enumeration is slow where it is done thousands of times."""

STATE = frozenset((Component.PARAMETERS, Component.OPTIMIZER))
"""What is there while the unit is; the rest only while it computes."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one model-stage on one device."""

    components: Mapping[Component, int]

    @property
    def state(self) -> int:
        """Parameters, moments and counters: there while the unit is."""
        return sum(size for part, size in self.components.items() if part in STATE)

    @property
    def live(self) -> int:
        """On top while it computes."""
        return sum(size for part, size in self.components.items() if part not in STATE)


SCALES: Mapping[Component, tuple[float, float]] = {
    Component.PARAMETERS: (1.0, 0.05),
    Component.GRADIENTS: (1.0, 0.3),
    Component.OPTIMIZER: (1.0, 0.05),
    Component.ACTIVATIONS: (1.1, 0.1),
    Component.ACTIVATIONS_OUTSIDE: (1.0, 0.2),
    Component.LOGITS: (1.0, 0.3),
    Component.KV_CACHE: (1.0, 0.1),
    Component.SENDS: (1.0, 0.5),
    Component.WORKSPACE: (0.8, 0.5),
    Component.RESIDENT: (1.0, 0.02),
}
"""Scale and its spread (in logs) before a peak was measured: bytes by shape are exact, copies and fragmentation are not.
How many copies of gradients there are, and in which precision, is the framework's choice: that scale is the least sure."""


def training_components(
    run: Execution, model: Architecture, resident_bytes: float = 0.0, ranks: Sequence[int] = ()
) -> NDArray[np.float64]:
    """Bytes by component (columns) of pipeline ranks (rows; all by default) at the peak of an update."""
    return np.array([_rank(run, model, rank, resident_bytes) for rank in ranks or range(run.pp)])


def fullest_components(run: Execution, model: Architecture, resident_bytes: float = 0.0) -> NDArray[np.float64]:
    """The same of the two ranks that can be the fullest: the first has the most in flight, the last the logits."""
    return training_components(run, model, resident_bytes, (0, run.pp - 1) if run.pp > 1 else (0,))


def generation_components(
    run: Execution, model: Architecture, cached_tokens: float, resident_bytes: float = 0.0, kv_item_bytes: float = 2
) -> NDArray[np.float64]:
    """The same for ranks that only compute forwards, with keys and values of `cached_tokens` tokens over all sequences.

    One layer's activations are alive at a time: of a micro-batch, or of the prompts that are prefilled together.
    """
    together = PREFILL_TOKENS if cached_tokens else run.micro_tokens
    logits = LOGIT_COPIES_BYTES * (run.micro_batch if cached_tokens else together) * model.head_outputs(run.tp)
    rows = []
    for rank, layers in enumerate(split_layers(run, model)):
        found = {
            Component.PARAMETERS: rank_parameters(run, model, rank) * run.weight_bytes,
            Component.KV_CACHE: layers * model.cached_width(run.tp) * kv_item_bytes * cached_tokens,
            Component.ACTIVATIONS: together * run.item_bytes * model.kept_inside(run.tp),
            Component.ACTIVATIONS_OUTSIDE: together * run.item_bytes * model.kept_outside(run.norm_shards),
            Component.LOGITS: logits * (rank == run.pp - 1),
            Component.SENDS: _routed_bytes(run, model, together),
            Component.RESIDENT: resident_bytes,
        }
        rows.append(_row(found))
    return np.array(rows)


def _rank(run: Execution, model: Architecture, rank: int, resident_bytes: float) -> NDArray[np.float64]:
    layers, parameters = split_layers(run, model)[rank], rank_parameters(run, model, rank)
    in_flight = min(run.pp - rank, run.micro_batches)
    tokens, hidden, item = run.micro_tokens, model.decoder.hidden_size, run.item_bytes
    inside, outside = model.kept_inside(run.tp), model.kept_outside(run.norm_shards)
    kept = tokens * in_flight * layers * item
    found = {
        Component.PARAMETERS: parameters * item,
        Component.GRADIENTS: parameters * (run.regime.gradient_bytes + run.regime.extra_gradient_bytes),
        Component.OPTIMIZER: _optimizer_bytes(run, model, rank) * (run.offload is not Offload.OPTIMIZER),
        Component.ACTIVATIONS: kept * inside,
        Component.ACTIVATIONS_OUTSIDE: kept * outside,
        Component.LOGITS: LOGIT_COPIES_BYTES * tokens * model.head_outputs(run.tp) * (rank == run.pp - 1),
        Component.SENDS: 2 * tokens * hidden * item / run.norm_shards * (run.pp > 1) + _routed_bytes(run, model, tokens),
        Component.RESIDENT: resident_bytes,
    }
    if run.recompute is Recompute.FULL:
        alive = tokens * item * bool(layers)
        found[Component.ACTIVATIONS] = alive * inside
        found[Component.ACTIVATIONS_OUTSIDE] = kept * hidden / run.norm_shards + alive * outside
    return _row(found)


def offloaded_bytes(run: Execution, model: Architecture) -> float:
    """Bytes that the fullest rank keeps on its host."""
    if run.offload is Offload.NONE:
        return 0.0
    rank = fullest_rank(run, model)
    if run.offload is Offload.OPTIMIZER:
        return _optimizer_bytes(run, model, rank)
    return rank_parameters(run, model, rank) * run.weight_bytes


def _optimizer_bytes(run: Execution, model: Architecture, rank: int) -> float:
    """Master and moments of a rank, wherever they are."""
    return updated_parameters(run, model, rank) * MASTER_BYTES


def _routed_bytes(run: Execution, model: Architecture, tokens: float) -> float:
    """Tokens on their way to experts of other EP ranks, and as many that came from them, of one layer."""
    if run.ep == 1 or not model.decoder.experts:
        return 0.0
    return 2 * tokens * model.decoder.experts.active * model.decoder.hidden_size * run.item_bytes / run.norm_shards


def _row(found: Mapping[Component, float]) -> NDArray[np.float64]:
    return np.array([found.get(part, WORKSPACE_BYTES if part is Component.WORKSPACE else 0.0) for part in PARTS])


@dataclass(frozen=True, slots=True)
class MemoryScales:
    """The learnt scale of each component."""

    values: Mapping[Component, tuple[float, float]] = field(default_factory=lambda: dict(SCALES))

    @property
    def vector(self) -> Vector:
        return np.array([self.values[part][0] for part in PARTS])

    def peak_bytes(self, components: NDArray[np.float64]) -> float:
        """The fullest rank's bytes."""
        return float((components @ self.vector).max())

    def footprint(self, row: NDArray[np.float64]) -> Footprint:
        """The bytes of one rank."""
        return Footprint({part: ceil(size) for part, size in zip(PARTS, row * self.vector, strict=True)})

    def by_component(self, components: NDArray[np.float64]) -> dict[Component, float]:
        """Bytes of the fullest rank by component; they add up to the peak."""
        scaled = components * self.vector
        fullest = scaled[int(scaled.sum(axis=1).argmax())]
        return dict(zip(PARTS, fullest.tolist(), strict=True))

    def learn(self, components: Sequence[NDArray[np.float64]], peaks: Sequence[float]) -> MemoryScales:
        """These scales after measured peaks (bytes)."""
        ranks = max(len(rows) for rows in components)
        stacked = np.zeros((len(components), ranks, len(Component)))
        for n, rows in enumerate(components):
            stacked[n, : len(rows)] = rows
        prior = np.log(self.vector)
        spread = np.array([self.values[part][1] for part in Component])
        found = fit(lambda scales: (stacked @ scales).max(axis=1), np.asarray(peaks, dtype=float), prior, spread)
        pairs = zip(np.exp(found.log), found.spread, strict=True)
        return replace(self, values={part: (float(v), float(s)) for part, (v, s) in zip(Component, pairs, strict=True)})
