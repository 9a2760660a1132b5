"""The same search on accelerators: the planner asks one cost model whatever the devices are."""

from __future__ import annotations

from nereus.cost.batch import Batch
from nereus.cost.priors import shipped
from nereus.cost.step import CostModel
from nereus.planner.request import SearchRequest
from nereus.planner.search import Choice, search
from nereus.spec.hardware import ACCELERATORS, Hardware
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING
from tests.cost.accelerators import LLAMA_8B
from tests.planner.problems import REAL_STATES, nodes_of

H100 = ACCELERATORS["H100"]


def best(devices: int, tokens: float, *, sequences: int = 256) -> Choice:
    """GRPO of Llama-3.1-8B on nodes of eight H100s; of the states only the roles count."""
    cost = CostModel(model=LLAMA_8B, hardware=Hardware(H100), dtype="bfloat16", prior=shipped("H100"))
    node_of = nodes_of((8,) * (devices // 8))
    batch = Batch(sequences, 512, tokens)
    request = SearchRequest(
        states=REAL_STATES,
        generates=ACTOR_GENERATION,
        cost=cost,
        devices=tuple(node_of),
        node_of=node_of,
        capacity_bytes=H100.memory_bytes,
        headroom=0.1,
        mean=batch,
        longest=batch,
        micro_batches=(1, 2, 4, 8, 16, 32),
    )
    return search(request)[0]


def test_a_plan_is_found_that_fits_and_uses_the_devices() -> None:
    choice = best(16, 1536)
    assert choice.peak_bytes <= 0.9 * H100.memory_bytes
    assert max(candidate.num_devices for candidate in choice.chosen) == 16


def test_training_that_holds_an_optimizer_is_sharded() -> None:
    """16 bytes a parameter and more are over 128 GB: one device cannot train."""
    trained = {c.plan.stage: c.plan for c in best(16, 1536).chosen}[ACTOR_TRAINING]
    assert trained.layout.size >= 2


def test_longer_responses_take_longer_and_more_devices_less() -> None:
    assert best(16, 3072).seconds > best(16, 1536).seconds > best(32, 1536).seconds
