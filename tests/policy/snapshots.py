"""Snapshots of a job with the model of examples/quickstart.yaml, on a pool of 8 devices on 2 nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nereus.cost.native import native_cost
from nereus.emu.plan import Plan
from nereus.emu.unit import counter_tensors, phi
from nereus.layout.dense import state_spec
from nereus.planner.native import NativePricing
from nereus.planner.pricing import Lengths
from nereus.policy.snapshot import Snapshot
from nereus.spec.job import Job
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES
from nereus.transition.estimate import LinkRates
from nereus.transition.ops import BUCKET_BYTES
from tests.builders import ENDPOINT_OF, make_plan

MODEL = ModelShape(hidden_size=96, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=24, ffn_size=256, vocab_size=64)
SERVED = state_spec(MODEL, "float32", counter_tensors(), optimizer=False)
TRAINED = state_spec(MODEL, "float32", counter_tensors(), optimizer=True)
STATES = {ACTOR_GENERATION: SERVED, REFERENCE_INFERENCE: SERVED, ACTOR_TRAINING: TRAINED}
DEVICES = tuple(range(8))
NODE_OF = {device: device // 4 for device in DEVICES}
MIB = 1 << 20


def pricing_of(capacity_bytes: int, headroom: float = 0.1) -> NativePricing:
    """256 sequences a step, prompts of 6 tokens, on CPU devices of this memory."""
    alone = {"tp": 1, "pp": 1, "dp": 1, "devices": "0"}
    job = Job.model_validate(
        {
            "name": "snapshot",
            "steps": 1,
            "model": MODEL,
            "task": {"name": "letter_class"},
            "workload": {
                "prompts_per_step": 32,
                "samples_per_prompt": 8,
                "max_prompt_tokens": 6,
                "response_cap": [{"step": 1, "tokens": 12}],
            },
            "optimizer": {"learning_rate": 1e-3},
            "cluster": {"nodes": 2, "devices_per_node": 4, "device": {"kind": "cpu", "memory": capacity_bytes}},
            "policy": {"headroom": headroom, "micro_batches": (4, 8, 16, 32, 64)},
            "plan": dict.fromkeys(STAGES, alone),
        }
    )
    cost = native_cost(MODEL, "float32", 4.5e9, capacity_bytes, len(DEVICES))
    return NativePricing(job=job, states=STATES, generates=ACTOR_GENERATION, cost=cost)


def native(snapshot: Snapshot) -> NativePricing:
    """The pricing of a snapshot, which is that of the native job."""
    assert isinstance(snapshot.pricing, NativePricing)
    return snapshot.pricing


def snapshot_of(
    texts: Mapping[str, str],
    *,
    devices: Mapping[str, Iterable[int]] | None = None,
    usable: tuple[int, ...] = DEVICES,
    present: tuple[int, ...] = DEVICES,
    capacity_bytes: int = 64 * MIB,
    micro_batch: int = 32,
    longest: float = 20,
    bucket_bytes: int = BUCKET_BYTES,
) -> Snapshot:
    """A job that runs on "tp2 dp2" and the like, on the first devices or on those named."""
    where = devices or {}
    stages = {
        name: replace(make_plan(text, stage=name, devices=where.get(name)), micro_batch=micro_batch)
        for name, text in texts.items()
    }
    endpoint_of = {device: ENDPOINT_OF[device] for device in present}
    return Snapshot(
        plan=Plan(0, stages),
        emus={name: phi(plan, endpoint_of, 0) for name, plan in stages.items()},
        endpoint_of=endpoint_of,
        node_of=NODE_OF,
        usable=usable,
        states=STATES,
        pricing=pricing_of(capacity_bytes),
        lengths=Lengths(12, longest),
        links=LinkRates(),
        bucket_bytes=bucket_bytes,
    )


def everywhere(text: str) -> dict[str, str]:
    return dict.fromkeys(STAGES, text)


SNAPSHOTS = {
    "half of the pool in use": snapshot_of({**everywhere("dp4"), ACTOR_TRAINING: "tp2 dp2"}),
    "all of the pool in use": snapshot_of({**everywhere("dp8"), ACTOR_TRAINING: "tp2 pp2 dp2"}),
    "the second node leaves": snapshot_of({**everywhere("dp8"), ACTOR_TRAINING: "tp2 dp4"}, usable=(0, 1, 2, 3)),
    "two of each node leave": snapshot_of({**everywhere("dp8"), ACTOR_TRAINING: "tp2 pp2 dp2"}, usable=(0, 1, 4, 5)),
    "memory is tight": snapshot_of({**everywhere("dp4"), ACTOR_TRAINING: "dp4"}, capacity_bytes=16 * MIB),
    "model-stages fit only apart": snapshot_of(
        {**everywhere("dp4"), ACTOR_TRAINING: "tp2 pp2"},
        devices={REFERENCE_INFERENCE: (4, 5, 6, 7)},
        capacity_bytes=5 * MIB,
    ),
    "what is used leaves": snapshot_of(
        {ACTOR_GENERATION: "dp4", REFERENCE_INFERENCE: "tp2 dp2", ACTOR_TRAINING: "tp2 pp2"}, usable=(4, 5, 6, 7)
    ),
}
