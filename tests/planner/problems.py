"""Planning problems: random ones from tables of numbers, and ones with the shapes of a real model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from nereus.cost.batch import Batch
from nereus.cost.components import Component, Footprint
from nereus.cost.layer import Architecture
from nereus.cost.native import native_cost
from nereus.emu.plan import StagePlan
from nereus.emu.unit import counter_tensors
from nereus.layout.catalog import StateSpec
from nereus.layout.dense import state_spec
from nereus.planner.request import SearchRequest
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES

QUICKSTART = ModelShape(hidden_size=96, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=24, ffn_size=256, vocab_size=64)
"""The model of examples/quickstart.yaml."""

SERVED = state_spec(QUICKSTART, "float32", counter_tensors(), optimizer=False)
TRAINED = state_spec(QUICKSTART, "float32", counter_tensors(), optimizer=True)
REAL_STATES = {ACTOR_GENERATION: SERVED, REFERENCE_INFERENCE: SERVED, ACTOR_TRAINING: TRAINED}

DEVICE_FLOPS = 4.5e9
"""0.15 of a core of 30 GFLOP/s."""

POOLS = ((1, 1), (2,), (3,), (4,), (2, 2), (4, 2), (5,), (3, 3), (6,), (4, 3), (4, 4), (8,))
"""Devices per node."""

TIGHTNESS = (0.1, 0.3, 0.5, 0.75, 1.5)
"""Capacity as a share of what the hungriest combination needs: some problems have no plan, some have all."""


@dataclass
class Tables:
    """What candidates cost, drawn at random once for each (model-stage, layout, dp, batching); stands for a CostModel.

    Seconds are whole numbers, so that sums are exact and equal plans compare equal. Within a shape the state stays the
    same over micro-batches and recomputation, as in life.
    """

    seed: int
    sync_s: int
    """Seconds of a weight sync per replica."""
    model: Architecture = field(default_factory=lambda: Architecture(QUICKSTART.decoder))
    dtype: str = "float32"
    drawn: dict[object, int] = field(default_factory=dict)

    def stage_seconds(self, stage: StagePlan, batch: Batch) -> float:
        return float(self._draw(1, 40, "seconds", stage.stage, stage.layout, stage.dp, stage.batching))

    def sync_seconds(self, replicas: int) -> float:
        return float(self.sync_s * replicas)

    def footprints(self, stage: StagePlan, state: StateSpec, batch: Batch) -> tuple[Footprint, ...]:
        shape = (stage.stage, stage.layout, stage.dp)
        return tuple(
            Footprint(
                {
                    Component.PARAMETERS: self._draw(5, 60, "state", *shape[:2], rank),
                    Component.ACTIVATIONS: self._draw(1, 60, "live", *shape, stage.batching, rank),
                }
            )
            for rank in range(stage.layout.size)
        )

    def _draw(self, low: int, high: int, *key: object) -> int:
        if key not in self.drawn:
            self.drawn[key] = Random(f"{self.seed} {key}").randint(low, high)
        return self.drawn[key]


def nodes_of(pool: Sequence[int]) -> dict[int, int]:
    """Device -> node, in node order."""
    nodes = [node for node, count in enumerate(pool) for _ in range(count)]
    return dict(enumerate(nodes))


def random_request(seed: int, *, sync_s: int = 0) -> SearchRequest:
    """Two or three model-stages with random tables on a random pool of 2 to 8 devices, tight or not."""
    random = Random(seed)
    tables = Tables(seed, sync_s)
    node_of = nodes_of(random.choice(POOLS))
    batch = Batch(random.choice((4, 6, 8, 12)), 4, 8)
    hungriest = 60 * 3 + 60
    return SearchRequest(
        states={name: REAL_STATES[name] for name in STAGES[: random.choice((2, 3))]},
        generates=ACTOR_GENERATION,
        cost=tables,  # type: ignore[arg-type]
        devices=tuple(node_of),
        node_of=node_of,
        capacity_bytes=round(hungriest * random.choice(TIGHTNESS)),
        headroom=random.choice((0.0, 0.1)),
        mean=batch,
        longest=batch,
        micro_batches=random.choice(((1,), (1, 4), (1, 2, 4))),
    )


def real_request(
    pool: Sequence[int] = (4, 4),
    capacity_bytes: int = 64 << 20,
    *,
    sequences: int = 256,
    mean_tokens: float = 12,
    longest_tokens: float = 20,
    micro_batches: tuple[int, ...] = (4, 8, 16, 32, 64),
) -> SearchRequest:
    """The three model-stages of examples/quickstart.yaml."""
    node_of = nodes_of(pool)
    return SearchRequest(
        states=REAL_STATES,
        generates=ACTOR_GENERATION,
        cost=native_cost(QUICKSTART, "float32", DEVICE_FLOPS, capacity_bytes, len(node_of)),
        devices=tuple(node_of),
        node_of=node_of,
        capacity_bytes=capacity_bytes,
        headroom=0.1,
        mean=Batch(sequences, 6, mean_tokens),
        longest=Batch(sequences, 6, longest_tokens),
        micro_batches=micro_batches,
    )
