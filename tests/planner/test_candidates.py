"""The candidates of one model-stage: exactly the legal ones that fit alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.cost.batch import Batch
from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.planner.candidates import candidates
from nereus.planner.request import SearchRequest
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES
from tests.planner.oracle import raw_candidates
from tests.planner.problems import QUICKSTART, real_request

POOLS = [(1,), (3,), (4, 2), (4, 4)]


def degrees_of(request: SearchRequest, stage: str) -> set[tuple[int, int, int, str]]:
    return {degrees(candidate.plan) for candidate in candidates(request, stage)}


def degrees(plan: StagePlan) -> tuple[int, int, int, str]:
    return plan.layout.tp, plan.layout.pp, plan.dp, plan.batching


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("stage", STAGES)
def test_candidates_are_all_legal_ones_that_fit_alone(pool: tuple[int, ...], stage: str) -> None:
    for capacity in (1 << 20, 6 << 20):
        request = real_request(pool, capacity, micro_batches=(4, 32))
        fitting = [raw for raw in raw_candidates(request, stage) if raw.state + raw.live <= 0.9 * capacity]
        assert degrees_of(request, stage) == {degrees(raw.plan) for raw in fitting}


@pytest.mark.parametrize("pool", POOLS)
def test_all_tensor_parallel_groups_fit_inside_nodes(pool: tuple[int, ...]) -> None:
    request = real_request(pool)
    for stage in STAGES:
        assert all(pp * dp <= sum(node // tp for node in pool) for tp, pp, dp, _ in degrees_of(request, stage))


def test_generation_has_no_pipeline_and_others_have() -> None:
    request = real_request((4, 4))
    assert {pp for _, pp, *_ in degrees_of(request, ACTOR_GENERATION)} == {1}
    assert {pp for _, pp, *_ in degrees_of(request, REFERENCE_INFERENCE)} == {1, 2, 4}


def test_pipelines_are_at_most_as_deep_as_the_model() -> None:
    request = real_request((8, 8))
    assert max(pp for _, pp, *_ in degrees_of(request, ACTOR_TRAINING)) == QUICKSTART.num_layers == 4


@pytest.mark.parametrize("sequences", [1, 6, 7, 12, 256])
def test_data_parallelism_divides_the_batch(sequences: int) -> None:
    request = real_request((4, 4), sequences=sequences)
    for stage in STAGES:
        assert {dp for *_, dp, _ in degrees_of(request, stage)} == {dp for dp in range(1, 9) if sequences % dp == 0}


def test_data_parallelism_of_training_divides_the_sequences_of_one_update() -> None:
    batch = Batch(24, 6, 20, updates=4)
    request = replace(real_request((4, 4)), mean=batch, longest=batch)
    assert {dp for *_, dp, _ in degrees_of(request, ACTOR_TRAINING)} == {1, 2, 3, 6}


def test_stages_that_do_not_train_may_use_the_whole_batch_however_many_updates() -> None:
    batch = Batch(24, 6, 20, updates=4)
    request = replace(real_request((4, 4)), mean=batch, longest=batch)
    assert {dp for *_, dp, _ in degrees_of(request, ACTOR_GENERATION)} == {1, 2, 3, 4, 6, 8}


def test_pinned_stage_has_one_candidate_with_its_own_devices() -> None:
    pinned = StagePlan(ACTOR_TRAINING, Layout(2, 2), 1, (6, 2, 5, 1), 8)
    request = replace(real_request((4, 4)), pinned={ACTOR_TRAINING: pinned})
    assert [candidate.plan for candidate in candidates(request, ACTOR_TRAINING)] == [pinned]


def test_candidates_come_fastest_first_and_in_the_same_order_each_time() -> None:
    first, second = (candidates(real_request((4, 4)), ACTOR_TRAINING) for _ in range(2))
    assert [c.seconds for c in first] == sorted(c.seconds for c in first)
    assert first == second


def test_only_training_is_recomputed() -> None:
    """It has a backward; with recomputation it takes less memory and more time than the same candidate without."""
    request = real_request((4, 4))
    for stage in (ACTOR_GENERATION, REFERENCE_INFERENCE):
        assert not any(candidate.plan.recompute for candidate in candidates(request, stage))
    found = {candidate.plan: candidate for candidate in candidates(request, ACTOR_TRAINING)}
    again = {plan: candidate for plan, candidate in found.items() if plan.recompute}
    assert again
    for plan, candidate in again.items():
        kept = found.get(replace(plan, recompute=False))
        if kept is not None:
            assert candidate.live_bytes <= kept.live_bytes
            assert candidate.seconds > kept.seconds
