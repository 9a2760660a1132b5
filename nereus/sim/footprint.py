"""Bytes that a model-stage really takes on a device: what stays, and what comes on top while it computes.

    stays    = parameters x (weight + optimizer)
    on top   = gradients + kept activations x tp ** -power + logits            training
             = one layer's activations + logits + keys and values              scoring, generation

Fitted on the peaks of 676 runs of the H100 sweep, median error 9.7 % (90 % within 28 %); of the 649 configurations that
crashed 80 % are over the card by it, and 17 that ran are. The cost model counts tensor by tensor, inside and outside of
TP regions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nereus.sim.model_size import HALF, ModelSize
from nereus.sim.noise import drawn

OPTIMIZER_BYTES = 12
"""Per parameter of mixed-precision AdamW: a float32 master and two float32 moments."""

PREFILL_TOKENS = 8192
"""Tokens that engines prefill together at most."""

CONTEXT = 0.62
"""Mean context of the sequences that decode, over the mean response: fitted with the iterations of generation
(published.py)."""


KEPT_SHARE, KEPT_SPREAD = 0.75, 0.15
"""Of what nanotron keeps for the backward, what a world's framework keeps, and its spread between worlds.

Halfway (in logs) to the 18 inputs of a layer that remain where norms and activations are fused, as Korthikanti et al. 2022
(section 4.1) count them, for a Llama layer: 2 for the norms, 4.5 for the attention, 11.5 for a gated MLP of 3.5 times the
width.
"""


@dataclass(frozen=True, slots=True)
class MemorySurface:
    """The figures of the fit."""

    gradient_bytes: float = 5.6
    """Per parameter: float32, and the half-precision one that it is added from."""
    kept: float = 32.0
    """Kept for the backward by one layer, as a multiple of its half-precision input."""
    tp_power: float = 0.94
    """TP shares what is kept out among its ranks nearly, not wholly."""
    logit_bytes: float = 10.0
    """Per logit of a micro-batch."""
    fixed: float = 0.67e9
    """Workspaces and communicators of a device."""

    def drawn(self, seed: int) -> MemorySurface:
        """The figures of one world: around these as far as a peak is off, and with what its framework keeps."""
        return replace(
            self,
            gradient_bytes=self.gradient_bytes * drawn(seed, "gradients", 0.1),
            kept=self.kept * KEPT_SHARE * drawn(seed, "activations", KEPT_SPREAD),
            logit_bytes=self.logit_bytes * drawn(seed, "logits", 0.1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What a device has of an EMU."""

    size: ModelSize
    tp: int
    pp: int
    rank: int
    """Pipeline rank."""
    dp: int = 1
    trains: bool = False
    zero1: bool = False
    recompute: bool = False

    @property
    def resident_bytes(self) -> float:
        """What stays while the unit is there."""
        optimizer = OPTIMIZER_BYTES / (self.dp if self.zero1 else 1) if self.trains else 0.0
        return self.size.shard(self.tp, self.pp, self.rank) * (HALF + optimizer)

    def training_bytes(self, surface: MemorySurface, micro_batch: int, tokens: float, micro_batches: float) -> float:
        """On top at the peak of an update: the first rank has the most micro-batches in flight, the last one the logits."""
        message = micro_batch * tokens * self.size.hidden * HALF
        layers, in_flight = self.size.layers_of(self.pp, self.rank), min(self.pp - self.rank, micro_batches)
        one_layer = self._layer_bytes(surface, message)
        kept = message * layers * in_flight + one_layer if self.recompute else one_layer * layers * in_flight
        gradients = surface.gradient_bytes * self.size.shard(self.tp, self.pp, self.rank)
        return gradients + kept + self._logit_bytes(surface, micro_batch * tokens)

    def scoring_bytes(self, surface: MemorySurface, micro_batch: int, tokens: float) -> float:
        """On top while whole sequences are scored: one layer, and the logits."""
        message = micro_batch * tokens * self.size.hidden * HALF
        return self._layer_bytes(surface, message) + self._logit_bytes(surface, micro_batch * tokens)

    def generation_bytes(
        self, surface: MemorySurface, concurrent: float, prompt: float, mean: float, longest: float
    ) -> float:
        """On top while it decodes: keys and values of the sequences that are there together, one of them the longest."""
        cached = concurrent * (prompt + CONTEXT * mean) + (longest - CONTEXT * mean)
        share = self.size.kv_share(self.tp) * self.size.layers_of(self.pp, self.rank) / self.size.layers
        message = max(min(PREFILL_TOKENS, concurrent * prompt), concurrent) * self.size.hidden * HALF
        computing = self._layer_bytes(surface, message) + self._logit_bytes(surface, concurrent)
        return cached * self.size.kv_bytes * share + computing

    def _layer_bytes(self, surface: MemorySurface, message: float) -> float:
        return surface.kept * message * float(self.tp**-surface.tp_power)

    def _logit_bytes(self, surface: MemorySurface, tokens: float) -> float:
        return surface.logit_bytes * tokens * self.size.outputs / self.tp if self.rank == self.pp - 1 else 0.0
