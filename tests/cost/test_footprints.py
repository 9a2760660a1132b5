"""Memory by component, asked the same way of the native job and of accelerators."""

from __future__ import annotations

import pytest

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.batch import Batch
from nereus.cost.components import STATE, Component
from nereus.cost.priors import shipped
from nereus.cost.step import CostModel
from nereus.emu.plan import Plan, StagePlan
from nereus.emu.unit import counter_tensors
from nereus.errors import LayoutError
from nereus.layout.dense import state_spec
from nereus.layout.layout import Layout
from nereus.spec.hardware import ACCELERATORS, Hardware
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES
from tests.cost.accelerators import LLAMA_8B, execution
from tests.cost.native import COST, QUICKSTART, stage_plan

BATCH = Batch(64, 6, 12)
SERVED = state_spec(QUICKSTART, "float32", counter_tensors(), optimizer=False)
TRAINED = state_spec(QUICKSTART, "float32", counter_tensors(), optimizer=True)
STATES = {ACTOR_GENERATION: SERVED, REFERENCE_INFERENCE: SERVED, ACTOR_TRAINING: TRAINED}
H100 = AcceleratorModel(shipped("H100"))
COSTS = {
    "native": COST,
    "H100": CostModel(
        model=LLAMA_8B,
        hardware=Hardware(ACCELERATORS["H100"]),
        dtype="bfloat16",
        prior=H100.efficiencies,
        scales=H100.scales,
    ),
}
LIVE = {
    ACTOR_GENERATION: Component.KV_CACHE,
    REFERENCE_INFERENCE: Component.LOGITS,
    ACTOR_TRAINING: Component.ACTIVATIONS,
}


@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("stage", STAGES)
def test_each_role_has_the_components_of_what_it_does(kind: str, stage: str) -> None:
    (footprint,) = COSTS[kind].footprints(stage_plan(stage), STATES[stage], BATCH)
    assert footprint.components[LIVE[stage]] > 0
    assert footprint.components[Component.PARAMETERS] > 0
    assert (footprint.components.get(Component.GRADIENTS, 0) > 0) == (stage == ACTOR_TRAINING)
    assert (footprint.components.get(Component.KV_CACHE, 0) > 0) == (stage == ACTOR_GENERATION)
    assert footprint.state == sum(footprint.components.get(part, 0) for part in STATE)
    assert footprint.state + footprint.live == sum(footprint.components.values())


@pytest.mark.parametrize("kind", COSTS)
def test_there_is_a_footprint_of_each_rank(kind: str) -> None:
    footprints = COSTS[kind].footprints(stage_plan(ACTOR_TRAINING, "tp2 pp2", 4), TRAINED, BATCH)
    assert len(footprints) == 4
    last = [footprint.components.get(Component.LOGITS, 0) > 0 for footprint in footprints]
    ranks = [Layout(2, 2).coordinate(rank).pp == 1 for rank in range(4)]
    assert last == ranks


@pytest.mark.parametrize("kind", COSTS)
def test_a_device_holds_all_states_and_the_most_that_is_live_at_a_time(kind: str) -> None:
    plan = Plan(0, {stage: stage_plan(stage) for stage in STAGES})
    each = [COSTS[kind].footprints(plan.stages[stage], STATES[stage], BATCH)[0] for stage in STAGES]
    expected = sum(footprint.state for footprint in each) + max(footprint.live for footprint in each)
    assert COSTS[kind].peaks(plan, STATES, BATCH) == {0: expected}


def test_an_accelerators_footprint_is_what_its_model_predicts() -> None:
    """An update of 64 sequences of 18 tokens in micro-batches of 32."""
    (footprint,) = COSTS["H100"].footprints(stage_plan(ACTOR_TRAINING), TRAINED, BATCH)
    predicted = H100.training(execution(tokens=18, micro_batch=32), LLAMA_8B)
    assert footprint.components == pytest.approx(dict(predicted.memory), abs=1)


def test_an_axis_without_a_price_is_refused_in_both_regimes() -> None:
    plan = StagePlan(ACTOR_TRAINING, Layout(fsdp=2), 1, (0, 1))
    for cost in COSTS.values():
        with pytest.raises(LayoutError, match="fsdp"):
            cost.stage_seconds(plan, BATCH)
