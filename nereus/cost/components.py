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
from nereus.cost.training import fullest_rank, rank_parameters, rank_weight_bytes, split_layers, updated_parameters

MASTER_BYTES = 12
"""Per parameter of mixed-precision AdamW: a float32 master and two float32 moments."""

LOGIT_COPIES_BYTES = 8
"""Per local logit of one micro-batch: in half precision, in float32, and the half-precision gradient."""

SCORE_COPIES_BYTES = 5
"""Per score of attention that goes through memory: after softmax, after dropout, and its mask (Korthikanti et al. 2022)."""

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
    """Buffers of messages, one per direction: of pipeline hops, of what sequence parallelism gathers, of all-to-alls."""
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
    Component.GRADIENTS: (1.0, 0.35),
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
What the regime says of gradients, a framework may not do: 2 to 8 bytes of them around the nominal 4 are a factor of two
either way, at two deviations."""


MEDIAN_OFF = 0.6745
"""Median distance from the mean of a normal distribution, in standard deviations."""

ENOUGH = 3 * len(SCALES)
"""Peaks whose residuals say how far a prediction is off: with few, the scales can meet each of them."""


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
            Component.PARAMETERS: rank_weight_bytes(run, model, rank),
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
    inside, outside = model.kept_inside(run.tp), model.kept_outside(run.norm_shards, gathered=run.keeps_gathered)
    if run.regime.writes_scores:
        inside += SCORE_COPIES_BYTES / item * model.scores(run.tokens, run.tp)
    buckets = run.regime.bucket_bytes if run.shares > 1 else 0
    messages = 2 * tokens * hidden * item * ((run.pp > 1) / run.norm_shards + (run.norm_shards > 1))
    kept = tokens * in_flight * layers * item
    found = {
        Component.PARAMETERS: parameters * item,
        Component.GRADIENTS: parameters * (run.regime.gradient_bytes + buckets),
        Component.OPTIMIZER: _optimizer_bytes(run, model, rank) * (run.offload is not Offload.OPTIMIZER),
        Component.ACTIVATIONS: kept * inside,
        Component.ACTIVATIONS_OUTSIDE: kept * outside,
        Component.LOGITS: LOGIT_COPIES_BYTES * tokens * model.head_outputs(run.tp) * (rank == run.pp - 1),
        Component.SENDS: messages + _routed_bytes(run, model, tokens),
        Component.RESIDENT: resident_bytes,
    }
    if run.recompute is Recompute.FULL:
        # The head's backward is over before the first layer is computed again: the larger of the two is at the peak.
        alive = tokens * item * bool(layers)
        if found[Component.LOGITS] > alive * (inside + outside):
            alive = 0.0
        else:
            found[Component.LOGITS] = 0.0
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
    return rank_weight_bytes(run, model, rank)


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
    error: float = 0.1
    """Relative standard deviation of a predicted peak: that of the peaks learnt from; a guess before there are any."""

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

    def learn(
        self, components: Sequence[NDArray[np.float64]], peaks: Sequence[float], capacities: Sequence[float]
    ) -> MemoryScales:
        """These scales after measured peaks, on devices of these capacities (bytes): none reports more than it has."""
        ranks = max(len(rows) for rows in components)
        stacked = np.zeros((len(components), ranks, len(Component)))
        for n, rows in enumerate(components):
            stacked[n, : len(rows)] = rows
        prior = np.log(self.vector)
        spread = np.array([self.values[part][1] for part in PARTS])
        most = np.asarray(capacities, dtype=float)

        def predict(scales: Vector) -> Vector:
            reported: Vector = np.minimum((stacked @ scales).max(axis=1), most)
            return reported

        found = fit(predict, np.asarray(peaks, dtype=float), prior, spread)
        pairs = zip(np.exp(found.log), found.spread, strict=True)
        values = {part: (float(v), float(s)) for part, (v, s) in zip(PARTS, pairs, strict=True)}
        if len(peaks) < ENOUGH:
            return replace(self, values=values)
        off = np.abs(np.log(predict(np.exp(found.log)) / np.asarray(peaks, dtype=float)))
        return replace(self, values=values, error=float(np.median(off)) / MEDIAN_OFF)
