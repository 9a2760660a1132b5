"""Operation classes, and amounts of them: the vocabulary that work, efficiencies and calibration share.

    an amount = the seconds that a class would take at datasheet rates (FLOPs / peak, bytes / bandwidth, calls x nominal)
    seconds   = amount / efficiency          efficiency: one number per class, learnt (paper, section 4.2)

A class without a datasheet rate (launches, fixed work) has a nominal one, so that its efficiency too is a plain number.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Amounts = NDArray[np.float64]
"""One number of seconds at datasheet rates per operation class, in the order of `OpClass`."""


class OpClass(StrEnum):
    """Operations that share one efficiency."""

    GEMM = "gemm"
    """Matrix products, by FLOPs."""
    GEMM_BYTES = "gemm_bytes"
    """The operands of matrix products, by bytes: what makes small and narrow products slower, bucket by bucket."""
    ATTENTION = "attention"
    """The part of attention that is quadratic in length (linear within a window), by FLOPs."""
    ELEMENTWISE = "elementwise"
    """Norms, residuals, rotary positions, activations and the loss, by bytes."""
    DISPATCH = "dispatch"
    """Launches of a layer's operations by the host: a floor under the time of the layer."""
    DISPATCH_PIPELINED = "dispatch_pipelined"
    """The same of a TP group in a pipeline across nodes; only in a software regime that has it."""
    TP_NODE = "tp_node"
    """Bytes of TP collectives inside a node."""
    TP_NETWORK = "tp_network"
    TP_LATENCY_NODE = "tp_latency_node"
    """Ring steps of TP collectives inside a node, however small."""
    TP_LATENCY_NETWORK = "tp_latency_network"
    SEND_NODE = "send_node"
    """Bytes between pipeline ranks."""
    SEND_NETWORK = "send_network"
    REDUCE_NODE = "reduce_node"
    """Bytes of the all-reduce of gradients."""
    REDUCE_NETWORK = "reduce_network"
    SCATTER_NODE = "scatter_node"
    """Bytes of ZeRO-1's reduce-scatter of gradients and all-gather of parameters."""
    SCATTER_NETWORK = "scatter_network"
    EXPERTS_NODE = "experts_node"
    """All-to-alls that carry tokens to experts and back under expert parallelism, inside a node."""
    EXPERTS_NETWORK = "experts_network"
    OPTIMIZER = "optimizer"
    """The optimizer step, by bytes."""
    STEP = "step"
    """What every step pays once: data, logging, host work around it."""
    WEIGHTS = "weights"
    """Weights read by a token step of generation, by bytes."""
    KV_READ = "kv_read"
    """Keys and values read by a token step, by bytes."""
    DECODE_DISPATCH = "decode_dispatch"
    """Launches of a token step: a floor, lower than training's where steps are captured in graphs."""
    SEQUENCE = "sequence"
    """What an engine does per sequence and token step whatever the TP degree: scheduling, sampling, detokenising."""
    OFFLOAD = "offload"
    """Bytes between a device and the memory of its node's host."""
    HOST = "host"
    """Processing of responses on the CPU; its amount is a measured number of seconds."""
    STALL = "stall"
    """A pipeline hop that waits for the allocator; only in a software regime that has it."""

    @property
    def position(self) -> int:
        """Its place in `Amounts`."""
        return _POSITION[self]


_POSITION = {op: index for index, op in enumerate(OpClass)}
_COUNT = len(_POSITION)

DATASHEET = frozenset(
    (
        OpClass.GEMM,
        OpClass.GEMM_BYTES,
        OpClass.ATTENTION,
        OpClass.ELEMENTWISE,
        OpClass.OPTIMIZER,
        OpClass.WEIGHTS,
        OpClass.KV_READ,
    )
)
"""Classes that nothing does faster than the datasheet says."""

LINKS = frozenset(
    (OpClass.TP_NODE, OpClass.TP_NETWORK, OpClass.SEND_NODE, OpClass.SEND_NETWORK)
    + (OpClass.REDUCE_NODE, OpClass.REDUCE_NETWORK, OpClass.SCATTER_NODE, OpClass.SCATTER_NETWORK)
    + (OpClass.EXPERTS_NODE, OpClass.EXPERTS_NETWORK)
)
"""Classes of messages: what hides behind computation seems faster than the link is."""

COMPUTE = frozenset(
    (*DATASHEET, OpClass.DISPATCH, OpClass.DISPATCH_PIPELINED, OpClass.DECODE_DISPATCH, OpClass.SEQUENCE, OpClass.STEP)
)
"""Classes that a device of another speed scales together; messages and measured seconds do not follow it."""

MOST = {**dict.fromkeys(DATASHEET, 1.0), **dict.fromkeys(LINKS, 2.0), OpClass.OFFLOAD: 1.0}
"""The largest efficiency that a fit may find. Nominal classes have no bound."""

CALL_S = 5e-6
"""Nominal seconds of one launch: what CUDA needs at best. Eager frameworks need several times as long; that is learnt."""

FORWARD_CALLS = 30
"""Launches of one layer's forward in an eager framework; a backward has twice as many."""

STEP_S = 10e-3
"""Nominal seconds of the fixed work of one step."""

STALL_S = 0.5
"""Nominal seconds that one pipeline hop waits while cached blocks are given back and new ones are taken."""


def amounts(values: Mapping[OpClass, float]) -> Amounts:
    """Amounts with these seconds, and zero of everything else."""
    found = np.zeros(_COUNT)
    for op, seconds in values.items():
        found[_POSITION[op]] += seconds
    return found
