"""The native job on devices without a datasheet: its habits as a regime, its messages, and what is assumed of it unmeasured.

    timed peak of a device, declared memory -> native_cost -> CostModel (step.py)

Everything adds up: the host dispatches an operation and waits for it, messages wait for both, and nothing is counted by
bytes of memory. What a call, a FLOP and a message cost is learnt for each role apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nereus.cost.efficiency import UNSEEN, Efficiencies, Efficiency
from nereus.cost.execution import Regime
from nereus.cost.layer import Architecture
from nereus.cost.operations import OpClass
from nereus.cost.step import CostModel
from nereus.layout.tensors import ITEM_BYTES
from nereus.spec.hardware import Hardware, cpu
from nereus.spec.model import ModelShape

NATIVE = Regime(
    name="native",
    sharpness=1.0,
    step_s=0.0,
    sequence_s=0.0,
    ends=1,
    optimizer_calls=3,
    scores_prompts=False,
    reduce_latency_s=((1, 0.0), (2, 7e-4), (4, 5e-3), (8, 2e-2)),
    shares_links=True,
    ledger=True,
)
"""nereus/rl. Its AdamW makes about 70 small operations on the nine tensors of a layer, a forward of it 25. Seconds of a
small all-reduce over Gloo are as measured on two cores."""

TIMED_SPREAD = 3.0
"""How far off (in logs) computation may be altogether: the peak of a product says little of a device that is paced and
shares its cores. Wide enough that one measurement scales calls and FLOPs alike, instead of dividing its time anew."""

UNSEEN_NATIVE: Mapping[OpClass, Efficiency] = {
    **UNSEEN,
    OpClass.GEMM: Efficiency(0.2, 0.7),
    OpClass.ATTENTION: Efficiency(0.2, 0.3),
    OpClass.DISPATCH: Efficiency(0.075, 0.7),
    OpClass.DECODE_DISPATCH: Efficiency(0.075, 0.7),
    **dict.fromkeys((OpClass.TP_LATENCY_NODE, OpClass.TP_LATENCY_NETWORK), Efficiency(1.0, 0.7)),
    **dict.fromkeys((OpClass.TP_NODE, OpClass.TP_NETWORK), Efficiency(1.0, 0.5)),
    **dict.fromkeys((OpClass.SEND_NODE, OpClass.SEND_NETWORK), Efficiency(1.0, 0.5)),
    **dict.fromkeys((OpClass.REDUCE_NODE, OpClass.REDUCE_NETWORK), Efficiency(1.0, 0.5)),
    **dict.fromkeys((OpClass.SCATTER_NODE, OpClass.SCATTER_NETWORK), Efficiency(1.0, 0.5)),
}
"""Before anything was measured: a fifth of the peak, and 2 ms for each layer's forward (25 operations of about 10 us of CPU
on a device of 0.15 of a core), below what any measured class reached, so unseen is never free; messages as they were
measured elsewhere. The spreads of messages are narrow: with 1.0, one disturbed step on a new plan was put down to gradients
that take twenty times as long, and products four times faster."""


def native_cost(shape: ModelShape, dtype: str, flops_s: float, memory_bytes: int, num_devices: int) -> CostModel:
    """The cost model of the native job before it ran: devices of `flops_s`, all of them on one machine for messages."""
    return CostModel(
        model=Architecture(shape.decoder),
        hardware=Hardware(cpu(flops_s, memory_bytes, dtype), devices_per_node=num_devices),
        regime=replace(NATIVE, gradient_bytes=ITEM_BYTES[dtype]),
        dtype=dtype,
        prior=Efficiencies("cpu", UNSEEN_NATIVE, common=TIMED_SPREAD),
    )
