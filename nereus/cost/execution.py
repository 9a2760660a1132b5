"""How one model-stage runs: its degrees of parallelism, its batch, and the habits of the framework that runs it.

A regime is what a framework does and hardware does not dictate: it is named, declared and can be switched off, so that
efficiencies stay about hardware and carry over to other software.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil

import numpy as np

from nereus.cost.batch import Batch
from nereus.cost.operations import CALL_S, STEP_S
from nereus.emu.plan import StagePlan
from nereus.errors import LayoutError
from nereus.layout.tensors import ITEM_BYTES
from nereus.spec.hardware import LATENCY_S, Hardware, LinkClass


class Recompute(StrEnum):
    """What the backward computes again instead of keeping."""

    NONE = "none"
    FULL = "full"
    """Whole layers: only their inputs are kept."""


class Offload(StrEnum):
    """What is kept in the memory of the node's host while it is not needed."""

    NONE = "none"
    PARAMETERS = "parameters"
    """Of a frozen model: they come to the device for their stage, and are dropped after it."""
    OPTIMIZER = "optimizer"
    """Master and moments: they pass through the device, bucket by bucket, in the optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Habits of a framework."""

    name: str = "plain"
    replicas_inside: bool = False
    """Whether ranks count tp, then dp, then pp (Megatron, nanotron), so that pipeline hops leave the node before replicas
    do. Otherwise an EMU's ranks are neighbours (Nereus)."""
    head_balanced: bool = False
    """Whether layers are split over the pipeline by compute, the head counted as the layers it costs."""
    gradient_bytes: int = 4
    """Per parameter in the gradients that are kept and reduced over the replicas."""
    bucket_bytes: int = 0
    """Per parameter in buckets that replicas reduce beside those: half-precision ones next to a float32 sum (DDP)."""
    writes_scores: bool = False
    """Whether attention computes the whole square of scores and writes it to memory, as it did before FlashAttention."""
    overlaps_gradients: bool = False
    """Whether the reduction of gradients hides behind the backward of the last micro-batch."""
    pipelined_dispatch: bool = False
    """Whether launches of a TP group slow down with its size once its pipeline crosses nodes."""
    stalls_near_capacity: bool = False
    """Whether pipeline hops stall once the predicted peak is over the headroom: an allocator that keeps returning memory."""
    stalls_replicated: bool = False
    """Whether hops stall with a replicated optimizer, many micro-batches and many replicas (see `replicated_stall`)."""
    sharpness: float = 6.0
    """Power of the norm that joins the time of device and host: the larger of the two, with a rounded corner where they are
    close; 1 is their sum, for a host that waits for each operation."""
    step_s: float = STEP_S
    """Nominal seconds that every step of a model-stage pays once."""
    sequence_s: float = CALL_S
    """Nominal seconds that an engine takes per sequence and token step."""
    ends: int = 0
    """Layers that embedding and head are worth in launches and TP collectives; beside a real model's layers they vanish."""
    optimizer_calls: int = 0
    """Forwards of a layer that the optimizer step of that layer is worth in launches; 0 where it is fused."""
    scores_prompts: bool = True
    """Whether logits of prompt tokens are computed too."""
    reduce_latency_s: tuple[tuple[int, float], ...] = ()
    """Measured seconds of a small all-reduce by group size; () is ring steps at the latency of the link."""
    ledger: bool = False
    """Whether memory is what the native job's ledger counts, to the byte, and not what an allocator takes."""
    shares_links: bool = False
    """Whether all messages pass through one machine, so that those at the same time wait for each other."""


PLAIN = Regime()
"""Nothing that hardware does not dictate."""

MEGATRON = Regime(name="megatron", replicas_inside=True)
"""Megatron-LM as its papers describe it: an even split of layers, float32 gradients in one buffer."""

MEGATRON_2021 = replace(MEGATRON, name="megatron-2021", writes_scores=True)
"""The same before FlashAttention."""

NANOTRON = Regime(
    name="nanotron",
    replicas_inside=True,
    head_balanced=True,
    bucket_bytes=2,
    pipelined_dispatch=True,
    stalls_near_capacity=True,
    stalls_replicated=True,
)
"""nanotron as measured in the Ultra-Scale Playbook sweep: its block costs balance the pipeline; the stalls are observed."""

REPLICATED_STALL = 16
"""Nodes times replicas from which a replicated optimizer stalls a pipeline, as observed in that sweep (8 to 64 devices)."""

REPLICATED_STALL_MICRO_BATCHES = 8
"""Below this number of micro-batches no such stall was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One model-stage on equal devices."""

    hardware: Hardware
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    """Ranks of an EMU that share the routed experts out whole; each has its own sequences and all the rest of the model."""
    micro_batch: int = 1
    """Sequences of one replica, or of one of its EP ranks, that go through the model together."""
    sequences: float
    """Of one update, over all replicas."""
    tokens: float
    """Of one sequence."""
    scored_tokens: float | None = None
    """Those of them that need logits; None: all."""
    zero1: bool = False
    sequence_parallel: bool = False
    """Whether norms and residuals are sharded over TP ranks along the sequence; collectives carry the same bytes."""
    keeps_gathered: bool = False
    """Whether what sequence parallelism gathers for the products is kept whole for the backward, not gathered again."""
    recompute: Recompute = Recompute.NONE
    offload: Offload = Offload.NONE
    item_bytes: float = 2
    """Bytes of an activation, and of a parameter that trains."""
    weight_bytes: float = 2
    """Bytes of a weight that only computes: fewer where it is quantised."""
    dtype: str = "bfloat16"
    """Of the operands of matrix products."""
    regime: Regime = field(default=PLAIN)

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.ep * self.dp

    @property
    def shares(self) -> int:
        """Parts into which the sequences are cut: replicas times their EP ranks."""
        return self.dp * self.ep

    @property
    def micro_batches(self) -> int:
        """Of the busiest replica."""
        return max(1, ceil(self.sequences / self.shares / self.micro_batch))

    @property
    def micro_tokens(self) -> float:
        """Tokens of one micro-batch."""
        return self.micro_batch * self.tokens

    @property
    def scored_micro_tokens(self) -> float:
        """Tokens of one micro-batch that need logits."""
        return self.micro_batch * (self.tokens if self.scored_tokens is None else self.scored_tokens)

    def reduce_latency_s(self, size: int, link: LinkClass) -> float:
        """Seconds of an all-reduce of a few bytes over `size` members: interpolated, beyond the table in proportion."""
        table = self.regime.reduce_latency_s
        if not table:
            return 2 * (size - 1) * LATENCY_S[link]
        largest, slowest = table[-1]
        if size > largest:
            return slowest * size / largest
        return float(np.interp(size, [group for group, _ in table], [seconds for _, seconds in table]))

    @property
    def norm_shards(self) -> int:
        """Ranks that share the work outside TP regions."""
        return self.tp if self.sequence_parallel else 1

    @property
    def replica_span(self) -> int:
        """Neighbouring devices that hold a DP group, its EP ranks among it."""
        return self.tp * self.shares if self.regime.replicas_inside else self.devices

    @property
    def hop_span(self) -> int:
        """Neighbouring devices that hold a pipeline: where the whole of it fits in a node, no hop leaves the node."""
        return self.devices if self.regime.replicas_inside else self.tp * self.ep * self.pp

    @property
    def replicas_per_node(self) -> int:
        """Members of one DP group in a node: they share the node's way out."""
        node = self.hardware.devices_per_node
        inner = self.tp if self.regime.replicas_inside else self.tp * self.pp
        return min(self.shares, max(1, min(self.ep, node // self.tp), node // inner))

    @property
    def expert_replicas_per_node(self) -> int:
        """The same of a group that reduces the gradients of experts: EP ranks have different ones."""
        inner = self.tp * self.ep * (1 if self.regime.replicas_inside else self.pp)
        return min(self.dp, max(1, self.hardware.devices_per_node // inner))

    @property
    def replicated_stall(self) -> bool:
        """Whether the regime's stall of a replicated optimizer applies."""
        nodes = self.devices / self.hardware.devices_per_node
        return (
            self.regime.stalls_replicated
            and not self.zero1
            and min(self.pp, self.dp) > 1
            and self.micro_batches > REPLICATED_STALL_MICRO_BATCHES
            and nodes * self.dp >= REPLICATED_STALL
        )


def execution_of(
    stage: StagePlan, hardware: Hardware, batch: Batch, *, trains: bool, regime: Regime = PLAIN, dtype: str = "bfloat16"
) -> Execution:
    """How a planned model-stage runs, its batch as the native job counts it.

    Raises LayoutError for axes that have no price.
    """
    layout = stage.layout
    if layout.fsdp * layout.ep > 1:
        raise LayoutError(f"{stage.stage}: the cost of layout {layout} is not known; use fsdp 1 and ep 1")
    return Execution(
        hardware=hardware,
        tp=layout.tp,
        pp=layout.pp,
        dp=stage.dp,
        micro_batch=min(stage.micro_batch, batch.rows(stage.dp, trains=trains)),
        sequences=batch.sequences / (batch.updates if trains else 1),
        tokens=batch.length,
        scored_tokens=batch.length if regime.scores_prompts else batch.response_tokens,
        zero1=stage.zero1,
        recompute=Recompute.FULL if stage.recompute else Recompute.NONE,
        item_bytes=ITEM_BYTES[dtype],
        weight_bytes=ITEM_BYTES[dtype],
        dtype=dtype,
        regime=regime,
    )
