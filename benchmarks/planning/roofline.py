"""Planning problems of the real size: PPO with six model-stages of an 8B model on a synthetic roofline.

The numbers are a plausible device of the H100 class, not a prediction: for the search the table of costs is the truth. KV
memory is a ladder of sequences per replica in absolute numbers; as a share of what is free it would make more memory slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from nereus.planner.problem import Edge, Floats, Holder, Ints, Pool, Problem, Rows, Stage

PARAMETERS, LAYERS, HIDDEN, VOCABULARY = 8.0e9, 32, 4096, 128_000
"""Of one model."""
KV_BYTES_PER_TOKEN = 131_072.0
"""8 kv heads of 128, 32 layers, bfloat16."""
FLOPS, MEMORY_BYTES_S, NODE_BYTES_S, NETWORK_BYTES_S = 4.5e14, 2.6e12, 2.0e11, 2.0e10
"""Achieved, of a device and of its links."""
LAUNCH_S = 1e-3
"""Floor of one pass of one pipeline stage."""

TP, PP = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32)
MICRO_BATCHES = (1, 2, 4, 8)
KV_SEQUENCES = (16, 64, 256, 1024)
"""Sequences that a generation replica keeps in its KV cache."""
RECOMPUTE_TIME = np.array([1.0, 1.08, 1.33])
RECOMPUTE_BYTES = np.array([34.0, 14.0, 2.5])
"""No recomputation, selective, full: factor of compute, and activation bytes per token, layer and hidden unit."""


@dataclass(frozen=True)
class Case:
    """One planning problem by its circumstances."""

    sizes: tuple[int, ...]
    """Devices per node."""
    sequences: int
    """Of one step."""
    tokens: int
    """Of one sequence."""
    capacity_bytes: float
    asynchronous: bool
    slow_nodes: int = 0
    """The last nodes have devices of another kind, with half the speed and memory."""
    fine: bool = True
    """All of the grid, or a coarser one for solvers that can't take it."""

    @property
    def name(self) -> str:
        """For a reader."""
        nodes = "+".join(f"{self.sizes.count(size)}x{size}" for size in sorted(set(self.sizes), reverse=True))
        kinds = f" {self.slow_nodes} slow" if self.slow_nodes else ""
        memory = f"{self.capacity_bytes / 1e9:.0f} GB"
        return f"{nodes}{kinds} {memory} {self.tokens} tokens {'async' if self.asynchronous else 'sync'}"


@dataclass(frozen=True)
class _Grid:
    """One column per candidate."""

    tp: Ints
    pp: Ints
    dp: Ints
    micro_batch: Ints
    recompute: Ints
    zero: Ints
    whole: Ints
    """1: the EMU is inside one node; 0: its TP groups are."""
    layout: Ints

    @property
    def num_devices(self) -> Ints:
        return self.tp * self.pp * self.dp

    @property
    def quantum(self) -> Ints:
        return np.where(self.whole == 1, self.tp * self.pp, self.tp)


def ppo(case: Case) -> Problem:
    """The rows of all holders of a case, priced."""
    kinds = (1.0, 2.0) if case.slow_nodes else (1.0,)
    training = _grid(max(case.sizes), sum(case.sizes), case.sequences, "training", case.fine)
    forward = _grid(max(case.sizes), sum(case.sizes), case.sequences, "forward", case.fine)
    decoding = _grid(max(case.sizes), sum(case.sizes), case.sequences, "decoding", case.fine)
    scoring = _rows(forward, [[_forward(forward, case) * slow] for slow in kinds], *_forward_bytes(forward, case))
    train = _training(training, case)
    updating = _rows(training, [[train * slow] for slow in kinds], *_training_bytes(training, case))
    both = [[_forward(training, case) * slow, train * slow] for slow in kinds]
    judging = _rows(training, both, *_training_bytes(training, case))
    sampling = _rows(decoding, [[_decoding(decoding, case) * slow] for slow in kinds], *_decoding_bytes(decoding, case))
    holders = (
        Holder("actor_generation", (Stage.GENERATION,), sampling),
        Holder("reference_inference", (Stage.INFERENCE,), scoring),
        Holder("reward_inference", (Stage.INFERENCE,), scoring),
        Holder("actor_training", (Stage.TRAINING,), updating),
        Holder("critic", (Stage.INFERENCE, Stage.TRAINING), judging),
    )
    node_kinds = [int(at >= len(case.sizes) - case.slow_nodes) for at in range(len(case.sizes))]
    pool = Pool.of(case.sizes, [case.capacity_bytes / slow for slow in kinds], node_kinds)
    return Problem(holders, pool, (Edge(0, 3, _weight_sync()),), case.asynchronous)


@cache
def _grid(node: int, devices: int, sequences: int, role: str, fine: bool) -> _Grid:
    """All legal combinations; what they are depends on no cost, so that a warm search has them already."""
    trains, decodes = role == "training", role == "decoding"
    micro_batches = KV_SEQUENCES if decodes else MICRO_BATCHES
    degrees = [dp for dp in range(1, devices + 1) if sequences % dp == 0]
    axes: list[Sequence[int]] = [
        [tp for tp in TP if tp <= node],
        PP,
        degrees if fine else [dp for dp in degrees if dp & (dp - 1) == 0],
        micro_batches if fine else micro_batches[::2],
        range(3 if trains and fine else 1) if fine or not trains else (1,),
        range(2) if trains and fine else (1 if trains else 0,),
        range(2),
    ]
    tp, pp, dp, mb, recompute, zero, whole = (axis.reshape(-1) for axis in np.meshgrid(*axes, indexing="ij"))
    emu = tp * pp
    legal = (emu * dp <= devices) & ((whole == 0) | ((emu <= node) & (pp > 1))) & ((whole == 1) | (pp > 1) | (emu == tp))
    legal &= (sequences // dp >= mb) if decodes else (sequences // dp % mb == 0)
    layout = np.log2(tp).astype(np.int64) * len(PP) + np.log2(pp).astype(np.int64)
    return _Grid(*(column[legal].astype(np.int64) for column in (tp, pp, dp, mb, recompute, zero, whole, layout)))


def _rows(grid: _Grid, seconds: list[list[Floats]], resident: Floats, active: Floats) -> Rows:
    """The table of a holder: its grid once for every device kind."""
    kinds = len(seconds)

    def tiled(column: npt.ArrayLike) -> npt.ArrayLike:
        return np.tile(column, kinds)

    latencies = [np.concatenate([of_kind[role] for of_kind in seconds]) for role in range(len(seconds[0]))]
    kind = np.repeat(np.arange(kinds), len(grid.tp))
    shape = tiled(grid.num_devices), tiled(resident), tiled(active), tiled(grid.quantum), tiled(grid.layout)
    return Rows.of(np.stack(latencies), *shape, kind)


def _pass_seconds(g: _Grid, case: Case) -> Floats:
    """A micro-batch through one pipeline stage, forward."""
    emu, tokens = g.tp * g.pp, g.micro_batch * case.tokens
    compute = 2 * PARAMETERS * tokens / (emu * FLOPS)
    tensor = 2 * LAYERS / g.pp * tokens * HIDDEN * 4 * (g.tp - 1) / g.tp / NODE_BYTES_S
    link = np.where(g.whole == 1, NODE_BYTES_S, NETWORK_BYTES_S * 2)
    return np.asarray(compute + tensor + (g.pp > 1) * tokens * HIDDEN * 2 / g.tp / link)


def _forward(g: _Grid, case: Case) -> Floats:
    rounds = case.sequences / (g.dp * g.micro_batch)
    return np.asarray((rounds + g.pp - 1) * (_pass_seconds(g, case) + LAUNCH_S))


def _forward_bytes(g: _Grid, case: Case) -> tuple[Floats, Floats]:
    tokens = g.micro_batch * case.tokens
    return np.asarray(2 * PARAMETERS / (g.tp * g.pp)), np.asarray(tokens * (HIDDEN * 32 + VOCABULARY * 4) / g.tp)


def _training(g: _Grid, case: Case) -> Floats:
    rounds, shard = case.sequences / (g.dp * g.micro_batch), PARAMETERS / (g.tp * g.pp)
    passes = 3 * _pass_seconds(g, case) * RECOMPUTE_TIME[g.recompute] + 2 * LAUNCH_S
    reduce_s = shard * np.where(g.zero == 1, 6, 8) * (g.dp - 1) / g.dp / NETWORK_BYTES_S
    update_s = shard * 30 / np.where(g.zero == 1, g.dp, 1) / MEMORY_BYTES_S
    return np.asarray((rounds + g.pp - 1) * passes + reduce_s + update_s)


def _training_bytes(g: _Grid, case: Case) -> tuple[Floats, Floats]:
    tokens, shard = g.micro_batch * case.tokens, PARAMETERS / (g.tp * g.pp)
    in_flight = np.minimum(g.pp, case.sequences // (g.dp * g.micro_batch))
    activations = RECOMPUTE_BYTES[g.recompute] * tokens * HIDDEN * LAYERS / g.pp * in_flight / g.tp
    resident = shard * (4 + 12 / np.where(g.zero == 1, g.dp, 1))
    return np.asarray(resident), np.asarray(2 * shard + activations + tokens * VOCABULARY * 6 / g.tp)


def _decoding(g: _Grid, case: Case) -> Floats:
    emu, of_replica = g.tp * g.pp, case.sequences / g.dp
    batch = np.minimum(g.micro_batch, of_replica)
    read = (2 * PARAMETERS + batch * KV_BYTES_PER_TOKEN * case.tokens / 2) / emu / MEMORY_BYTES_S
    token_s = g.pp * (read + LAUNCH_S + LAYERS / g.pp * 12e-6 * np.log2(g.tp))
    return np.asarray(np.ceil(of_replica / batch) * case.tokens * 0.7 * token_s)


def _decoding_bytes(g: _Grid, case: Case) -> tuple[Floats, Floats]:
    emu = g.tp * g.pp
    return np.asarray(2 * PARAMETERS / emu), np.asarray(g.micro_batch * KV_BYTES_PER_TOKEN * case.tokens / emu)


@cache
def _weight_sync() -> Floats:
    """(layout classes, layout classes) Dearer where the layouts of generation and training differ."""
    tp, pp = np.meshgrid(np.log2(TP), np.log2(PP), indexing="ij")
    layouts = np.stack([tp.reshape(-1), pp.reshape(-1)], 1)
    apart = np.abs(layouts[:, None] - layouts[None, :]).sum(2)
    return np.asarray(0.05 + 0.02 * apart)
