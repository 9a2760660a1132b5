"""Pins of an outline: what is settled about a model-stage before a plan is searched.

    pins: {actor_training: {tp: 4, dp: 2, devices: 0-7}}  -> Pin -> the search offers only what agrees with it

What is not pinned stays free. A pin that nothing can agree with is refused by its field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Literal

from pydantic import Field, Strict

from nereus.spec.declared import Declared, Whole
from nereus.spec.decoder import Decoder, ep_degrees, tp_degrees
from nereus.spec.devices import Devices
from nereus.spec.problems import Problem, one_of, unknown
from nereus.spec.workflow import GENERATION, TRAINING, Workflow

Degree = Annotated[Whole, Field(ge=1)]


class Pin(Declared):
    """What is settled about one model-stage; null: the search decides."""

    tp: Degree | None = None
    """Tensor parallelism."""
    pp: Degree | None = None
    """Pipeline ranks."""
    dp: Degree | None = None
    """Replicas (EMUs)."""
    ep: Degree | None = None
    """Expert parallelism: ranks of an EMU that share the experts of a MoE model out whole."""
    micro_batch: Degree | None = None
    """Sequences that go through the model together; of actor_generation those that a replica generates at the same time."""
    recompute: Annotated[bool, Strict()] | None = None
    """Whether the backward computes whole layers again; of model-stages that train."""
    zero1: Annotated[bool, Strict()] | None = None
    """Whether optimizer state is sharded over the replicas (ZeRO-1); of model-stages that train."""
    offload: Literal["none", "parameters", "optimizer"] | None = None
    """What is kept on the host: parameters of a model-stage that only scores, or the optimizer of one that trains."""
    devices: Devices | None = None
    """Where it lies: devices of the nodes in their order, numbered from 0; as many as the product of the degrees."""

    @property
    def settled(self) -> Mapping[str, object]:
        """The fields that are pinned, with their values."""
        return {name: value for name in Pin.model_fields if (value := getattr(self, name)) is not None}

    @property
    def degrees(self) -> Mapping[str, int]:
        """The degrees of parallelism that are pinned."""
        return {axis: degree for axis in AXES if (degree := getattr(self, axis)) is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.settled.items() if name != "devices") or "its devices"


AXES = ("tp", "pp", "dp", "ep")
"""Fields whose product is the number of devices."""

OF_TRAINING = ("recompute", "zero1")
"""Fields that only model-stages have that train."""


def pin_problems(
    pins: Mapping[str, Pin], workflow: Workflow, sequences: int, updates: int, kinds: Sequence[object]
) -> Iterator[Problem]:
    """What is wrong with pins whatever the models are. `sequences` of a step; `kinds` has the kind of every device."""
    for name, pin in pins.items():
        if name not in workflow.holders:
            stages = [stage.name for stage in workflow.stages]
            if name in stages:
                allowed = f"it runs on the EMUs of {workflow.stage(name).holder}; pin that"
            else:
                allowed = unknown(name, workflow.holders, "model-stage with devices of its own")
            yield Problem(f"pins.{name}", dict(pin.settled), allowed)
            continue
        trains = any(workflow.stage(stage).role == TRAINING for stage in workflow.roles(name))
        if not trains:
            unused = (field for field in OF_TRAINING if field in pin.settled)
            yield from (Problem(f"pins.{name}.{field}", pin.settled[field], f"{name} does not train") for field in unused)
        offloads = "optimizer" if trains else "parameters" if workflow.stage(name).role != GENERATION else "none"
        if pin.offload not in (None, "none", offloads):
            yield Problem(f"pins.{name}.offload", pin.offload, f"it must be {one_of(dict.fromkeys(('none', offloads)))}")
        yield from _batch_problems(f"pins.{name}", pin, sequences / (updates if trains else 1))
        yield from _device_problems(f"pins.{name}", pin, kinds)


def model_problems(pins: Mapping[str, Pin], decoders: Mapping[str, Decoder]) -> Iterator[Problem]:
    """What of the pins the models forbid; `decoders` by model-stage."""
    for name, pin in pins.items():
        decoder, field = decoders[name], f"pins.{name}"
        degrees = tp_degrees(decoder, decoder.num_heads)
        if pin.tp is not None and pin.tp not in degrees:
            heads = f"{decoder.num_heads} heads and {decoder.num_kv_heads} kv heads"
            yield Problem(f"{field}.tp", pin.tp, f"its model has {heads}; it must be {one_of(degrees)}")
        shares = ep_degrees(decoder, decoder.experts.count if decoder.experts else 1)
        if pin.ep is not None and pin.ep not in shares:
            yield Problem(
                f"{field}.ep",
                pin.ep,
                f"its model has {shares[-1] if decoder.experts else 'no'} experts; it must be {one_of(shares)}",
            )
        if pin.devices and decoder.experts is None and len({**pin.degrees, "ep": 1}) == len(AXES):
            yield from _count_problems(field, pin)
        if pin.pp is not None and pin.pp > decoder.num_layers:
            yield Problem(f"{field}.pp", pin.pp, f"its model has {decoder.num_layers} layers, at most as many ranks")


def _batch_problems(field: str, pin: Pin, sequences: float) -> Iterator[Problem]:
    if pin.dp is not None and pin.dp > sequences:
        yield Problem(f"{field}.dp", pin.dp, f"there are {sequences:g} sequences to share out; it must be at most that")


def _device_problems(field: str, pin: Pin, kinds: Sequence[object]) -> Iterator[Problem]:
    devices = pin.devices
    if devices is None:
        return
    shown = list(devices)
    if not devices or len(set(devices)) < len(devices):
        yield Problem(f"{field}.devices", shown, "it must name one device or more, each once")
    elif max(devices) >= len(kinds):
        yield Problem(f"{field}.devices", max(devices), f"the nodes have {len(kinds)} devices; it must be below that")
    elif len({kinds[device] for device in devices}) > 1:
        yield Problem(f"{field}.devices", shown, "the EMUs of a model-stage stay on one kind of devices")
    elif len(devices) % prod(pin.degrees.values()) or len(pin.degrees) == len(AXES):
        yield from _count_problems(field, pin)


def _count_problems(field: str, pin: Pin) -> Iterator[Problem]:
    devices, given = pin.devices or (), prod(pin.degrees.values())
    if len(devices) != given:
        named = " x ".join(f"{axis} {degree}" for axis, degree in pin.degrees.items())
        allowed = f"there are {len(devices)}, and {named} is {given}; change one of them"
        yield Problem(f"{field}.devices", list(devices), allowed)
