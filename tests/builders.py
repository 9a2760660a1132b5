"""Builders of plans, units and states, and an independent cut of tensors into shards.

    "tp4 pp2 dp2" -> StagePlan, EMUs          element_mask(tensor, ...) -> which elements a rank holds

`element_mask` is written from the paper and the design (grains shared out by whole division, kv heads repeated, layers
in contiguous runs), not from the code: it is the reference of the geometry and movement tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu, counter_tensors
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.dense import dense_parameters, layer_name, state_spec
from nereus.layout.layout import Layout, OptimizerShard
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment, TensorRef
from nereus.spec.model import ModelShape

Mask = NDArray[np.bool_]
Values = NDArray[np.int64]

STAGE = "actor_training"
NUM_DEVICES = 160
ENDPOINT_OF = {device: f"d{device}.0" for device in range(NUM_DEVICES)}
DEVICE_OF = {endpoint: device for device, endpoint in ENDPOINT_OF.items()}
ONE_NODE = dict.fromkeys(range(NUM_DEVICES), 0)


def degrees(text: str) -> dict[str, int]:
    """Degrees of parallelism of a text such as "tp4 pp2 dp2", "fsdp4" or "dp4 zero1"; what is left out is 1."""
    found = {"tp": 1, "pp": 1, "fsdp": 1, "dp": 1, "zero": 0}
    for word in text.split():
        name = word.rstrip("0123456789")
        found[name] = int(word[len(name) :])
    return found


def make_layout(text: str) -> Layout:
    """The layout of "tp4 pp2"."""
    found = degrees(text)
    return Layout(found["tp"], found["pp"], found["fsdp"])


def make_plan(text: str, *, stage: str = STAGE, devices: Iterable[int] | None = None) -> StagePlan:
    """The stage plan of "tp4 pp2 dp2" on these devices; on 0, 1, 2 .. by default."""
    layout, found = make_layout(text), degrees(text)
    on = tuple(range(layout.size * found["dp"]) if devices is None else devices)
    return StagePlan(stage, layout, found["dp"], on, zero1=bool(found["zero"]))


def make_emus(text: str, *, stage: str = STAGE, devices: Iterable[int] | None = None, epoch: int = 0) -> tuple[Emu, ...]:
    """The EMUs of "tp4 pp2 dp2" on the endpoints of these devices, in replica order."""
    plan = make_plan(text, stage=stage, devices=devices)
    size, names = plan.layout.size, [ENDPOINT_OF[device] for device in plan.devices]
    return tuple(
        Emu(
            UnitId(stage, index, epoch),
            plan.layout,
            tuple(names[index * size : (index + 1) * size]),
            OptimizerShard(index, plan.dp) if plan.zero1 else OptimizerShard(0, 1),
        )
        for index in range(plan.dp)
    )


def make_emu(text: str, *, stage: str = STAGE, devices: Iterable[int] | None = None, epoch: int = 0) -> Emu:
    """The only EMU of "tp4 pp2"."""
    (emu,) = make_emus(text, stage=stage, devices=devices, epoch=epoch)
    return emu


def endpoints_of(devices: Iterable[int]) -> tuple[EndpointId, ...]:
    return tuple(ENDPOINT_OF[device] for device in devices)


def devices_of(emu: Emu) -> tuple[int, ...]:
    return tuple(DEVICE_OF[endpoint] for endpoint in emu.endpoints)


def shape_texts(max_devices: int, num_layers: int = 6, form: str = "plain") -> list[str]:
    """Every "tp pp dp" over at most this many devices and with at most one pipeline rank per layer.

    In form "zero1" the replicas share the optimizer state; in form "fsdp" there is one, which shares all of its state.
    """
    upto = range(1, max_devices + 1)
    axis, suffix = {"plain": ("dp", ""), "zero1": ("dp", " zero1"), "fsdp": ("fsdp", "")}[form]
    return [
        f"tp{tp} pp{pp} {axis}{dp}{suffix}"
        for tp in upto
        for pp in upto
        for dp in upto
        if tp * pp * dp <= max_devices and pp <= num_layers
    ]


class UnitNames:
    """Names units one after the other, as a transition does."""

    def __init__(self, stage: str = STAGE, epoch: int = 1) -> None:
        self._stage, self._epoch, self._next = stage, epoch, 0

    def __call__(self) -> UnitId:
        self._next += 1
        return UnitId(self._stage, self._next - 1, self._epoch)


def make_model(*, num_layers: int = 6, num_heads: int = 4, num_kv_heads: int = 2, vocab: int = 51, tied: bool) -> ModelShape:
    """A dense decoder of a few hundred elements."""
    return ModelShape(
        hidden_size=4,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=2,
        ffn_size=12,
        vocab_size=vocab,
        tie_embeddings=tied,
    )


def make_state(model: ModelShape, *, optimizer: bool = False, dtype: str = "float32") -> StateSpec:
    """All canonical tensors of a dense model, counters included."""
    return state_spec(model, dtype, counter_tensors(), optimizer=optimizer)


def thin_state(model: ModelShape) -> StateSpec:
    """The dense model with one tensor in each layer, every sharding rule in some layer, and one counter."""
    rules = ("self_attn.k_proj", "self_attn.q_proj", "self_attn.o_proj", "input_layernorm", "mlp.gate_proj")
    kept = {layer_name(layer, rules[layer % len(rules)]) for layer in range(model.num_layers)}
    parameters = tuple(t for t in dense_parameters(model, "float32") if t.layer is None or t.name in kept)
    return StateSpec((*parameters, counter_tensors()[0]), model.num_layers)


def fused_state(num_layers: int = 6, num_heads: int = 8, num_kv_heads: int = 2) -> StateSpec:
    """A model with fused q/k/v and gate/up tensors, as Megatron and vLLM hold them."""
    heads, kv, ffn = num_heads * 2, num_kv_heads * 2, 10

    def fused(layer: int, name: str, *segments: Segment) -> CanonicalTensor:
        shape = (sum(segment.length for segment in segments), 3)
        return CanonicalTensor(f"{layer}.{name}", Kind.PARAMETER, shape, "float32", Place.LAYER, layer, 0, segments)

    tensors = [
        tensor
        for layer in range(num_layers)
        for tensor in (
            fused(layer, "qkv", Segment(heads, 2), Segment(kv, 2), Segment(kv, 2)),
            fused(layer, "gate_up", Segment(ffn), Segment(ffn)),
        )
    ]
    return StateSpec((*tensors, *counter_tensors()), num_layers)


def holders_of_grain(grain: int, num_grains: int, parts: int) -> list[int]:
    """Which of `parts` hold a grain: one part if there are enough grains, else the neighbours that share it."""
    if num_grains >= parts:
        return [max(part for part in range(parts) if part * num_grains // parts <= grain)]
    return [part for part in range(parts) if part * num_grains // parts == grain]


def layer_owner(layer: int, num_layers: int, pp: int) -> int:
    """The pipeline rank of a layer: contiguous runs of whole division."""
    return max(rank for rank in range(pp) if rank * num_layers // pp <= layer)


@lru_cache(maxsize=200_000)
def element_mask(
    tensor: CanonicalTensor, tp: int, pp: int, tp_rank: int, pp_rank: int, num_layers: int, parts: tuple[int, ...] = ()
) -> Mask:
    """Which elements of a tensor a rank holds, as a mask of the whole tensor.

    `parts` are (rank, degree) one after the other: of the fsdp axis, and of the replicas that share the optimizer state.
    Each shares out the rows that are left, run by run, by whole division.
    """
    mask = np.zeros(tensor.shape, dtype=bool)
    owners = {
        Place.EVERYWHERE: range(pp),
        Place.FIRST: [0],
        Place.LAST: [pp - 1],
        Place.ENDS: [0, pp - 1],
        Place.LAYER: [layer_owner(tensor.layer or 0, num_layers, pp)],
    }[tensor.place]
    if pp_rank in owners:
        if tensor.axis is None:
            mask[...] = True
        else:
            np.moveaxis(mask, tensor.axis, 0)[_rows(tensor.segments, tp, tp_rank)] = True
        if tensor.shape and tensor.place is not Place.EVERYWHERE:
            kept = parts if tensor.kind in (Kind.MASTER, Kind.EXP_AVG, Kind.EXP_AVG_SQ) else parts[:2]
            for rank, degree in zip(kept[::2], kept[1::2], strict=True):
                mask = _share_of_rows(mask, tensor, rank, degree)
    mask.setflags(write=False)
    return mask


def _share_of_rows(mask: Mask, tensor: CanonicalTensor, rank: int, degree: int) -> Mask:
    """The share of one of `degree` in the held rows; those of each segment on the first axis are shared out apart."""
    ends = [tensor.shape[0]] if tensor.axis != 0 else list(np.cumsum([segment.length for segment in tensor.segments]))
    shared = np.zeros_like(mask)
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        held = [row for row in range(start, end) if mask[row].any()]
        mine = held[rank * len(held) // degree : (rank + 1) * len(held) // degree]
        shared[mine] = mask[mine]
    return shared


def _rows(segments: Sequence[Segment], tp: int, tp_rank: int) -> list[int]:
    rows: list[int] = []
    start = 0
    for segment in segments:
        num_grains = segment.length // segment.grain
        for grain in range(num_grains):
            if tp_rank in holders_of_grain(grain, num_grains, tp):
                first = start + grain * segment.grain
                rows += range(first, first + segment.grain)
        start += segment.length
    return rows


def rank_masks(state: StateSpec, emu: Emu) -> Iterator[tuple[EndpointId, CanonicalTensor, Mask]]:
    """What each endpoint of a unit holds of each tensor; ranks are numbered with tp fastest."""
    masks = iter(_masks(state, emu.layout, emu.optimizer))
    return ((endpoint, tensor, next(masks)) for endpoint in emu.endpoints for tensor in state.tensors)


@lru_cache(maxsize=2000)
def _masks(state: StateSpec, layout: Layout, optimizer: OptimizerShard) -> list[Mask]:
    """The masks of all tensors on each rank."""
    masks = []
    for rank in range(layout.size):
        tp_rank, fsdp_rank, pp_rank = rank % layout.tp, rank // layout.tp % layout.fsdp, rank // layout.tp // layout.fsdp
        at = (layout.tp, layout.pp, tp_rank, pp_rank, state.num_layers, (fsdp_rank, layout.fsdp, *optimizer))
        masks += [element_mask(tensor, *at) for tensor in state.tensors]
    return masks


def global_values(state: StateSpec) -> dict[TensorRef, Values]:
    """A value for every element of the logical state, all of them different."""
    values: dict[TensorRef, Values] = {}
    start = 0
    for tensor in state.tensors:
        values[tensor.ref] = np.arange(start, start + tensor.num_elements, dtype=np.int64).reshape(tensor.shape)
        start += tensor.num_elements
    return values
