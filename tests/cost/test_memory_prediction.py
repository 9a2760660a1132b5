"""The native job's memory: sums done by hand for a tiny model, and the directions in which it may not move.

The model has hidden 8, 4 query and 2 kv heads of 2, MLP 12, vocabulary 10, 3 layers, untied, float32. One layer has
q 64 + k 32 + v 32 + o 64 + norms 16 + MLP 3 * 96 = 496 parameters, the ends embed 80 + norm 8 + head 80.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nereus.cost.batch import Batch
from nereus.cost.native import native_cost
from nereus.cost.step import CostModel
from nereus.emu.plan import Plan, StagePlan
from nereus.emu.unit import counter_tensors
from nereus.layout.dense import state_spec
from nereus.layout.layout import Layout
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from tests.builders import degrees, make_layout

MODEL = ModelShape(
    hidden_size=8, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=2, ffn_size=12, vocab_size=10, tie_embeddings=False
)
BATCH = Batch(sequences=8, prompt_tokens=3, response_tokens=5)
COUNTERS = 4 * 8
TRAINED = state_spec(MODEL, "float32", counter_tensors(), optimizer=True)
SERVED = state_spec(MODEL, "float32", counter_tensors(), optimizer=False)
STATES = {ACTOR_GENERATION: SERVED, REFERENCE_INFERENCE: SERVED, ACTOR_TRAINING: TRAINED}

PER_LAYER_TOKEN = 6 * 8 + 5 * 8 + 4 * 12 + 4
"""Elements that a layer keeps for a token on one rank: norms, attention, MLP, log-sums of 4 heads."""

PER_RESPONSE_TOKEN = 3 * 8 + 2 * 10
"""The same for the final norm and the logits."""


def plan_of(stage: str, text: str, micro_batch: int = 2, devices: Iterable[int] | None = None) -> StagePlan:
    layout, dp = make_layout(text), degrees(text)["dp"]
    return StagePlan(stage, layout, dp, tuple(range(layout.size * dp) if devices is None else devices), micro_batch)


def cost_of(dtype: str = "float32") -> CostModel:
    return native_cost(MODEL, dtype, 1e9, 1 << 20, 16)


def footprint(stage: str, text: str, rank: int = 0, batch: Batch = BATCH, micro_batch: int = 2) -> tuple[int, int]:
    found = cost_of().footprints(plan_of(stage, text, micro_batch), STATES[stage], batch)[rank]
    return found.state, found.live


def peaks(stages: Iterable[StagePlan], batch: Batch = BATCH) -> dict[int, int]:
    return cost_of().peaks(Plan(0, {stage.stage: stage for stage in stages}), STATES, batch)


def test_training_on_one_device_holds_state_gradients_and_one_micro_batch() -> None:
    parameters = 3 * 496 + 168
    activations = 2 * 8 * (3 * PER_LAYER_TOKEN + 2) + 2 * 5 * PER_RESPONSE_TOKEN
    assert footprint(ACTOR_TRAINING, "tp1") == (3 * 4 * parameters + COUNTERS, 4 * parameters + 4 * activations)
    assert footprint(ACTOR_TRAINING, "tp1") == (19904, 35392)


def test_tensor_parallel_rank_holds_half_of_all_that_is_cut() -> None:
    parameters = 3 * (32 + 16 + 16 + 32 + 16 + 3 * 48) + 40 + 8 + 40
    activations = 2 * 8 * (3 * (6 * 8 + 5 * 4 + 4 * 6 + 2) + 2) + 2 * 5 * (3 * 8 + 2 * 5)
    for rank in (0, 1):
        assert footprint(ACTOR_TRAINING, "tp2", rank) == (12 * parameters + COUNTERS, 4 * parameters + 4 * activations)


def test_first_pipeline_rank_keeps_two_micro_batches_and_what_it_sent() -> None:
    parameters = 80 + 496
    activations, sent = 2 * (2 * 8 * (PER_LAYER_TOKEN + 2)), 8 * 8 * 8
    assert footprint(ACTOR_TRAINING, "pp2", 0) == (12 * parameters + COUNTERS, 4 * parameters + 4 * (activations + sent))


def test_last_pipeline_rank_keeps_one_micro_batch_the_head_and_the_gradients_it_sent() -> None:
    parameters = 2 * 496 + 88
    activations, sent = 2 * 8 * (2 * PER_LAYER_TOKEN + 2) + 2 * 5 * PER_RESPONSE_TOKEN, 8 * 8 * 8
    assert footprint(ACTOR_TRAINING, "pp2", 1) == (12 * parameters + COUNTERS, 4 * parameters + 4 * (activations + sent))


def test_middle_pipeline_rank_sends_both_ways() -> None:
    activations, sent = 2 * (2 * 8 * (PER_LAYER_TOKEN + 2)), 2 * 8 * 8 * 8
    assert footprint(ACTOR_TRAINING, "pp3", 1) == (12 * 496 + COUNTERS, 4 * 496 + 4 * (activations + sent))


def test_first_rank_of_a_deep_pipeline_keeps_no_more_micro_batches_than_there_are() -> None:
    rows = Batch(sequences=4, prompt_tokens=3, response_tokens=5)
    activations, sent = 2 * (2 * 8 * (PER_LAYER_TOKEN + 2)), 4 * 8 * 8
    assert footprint(ACTOR_TRAINING, "pp3", 0, rows)[1] == 4 * 576 + 4 * (activations + sent)


def recomputed(text: str, rank: int, batch: Batch = BATCH) -> int:
    """Live bytes of a rank that trains with a micro-batch of 2."""
    plan = replace(plan_of(ACTOR_TRAINING, text), recompute=True)
    return cost_of().footprints(plan, TRAINED, batch)[rank].live


def test_recomputing_rank_keeps_what_enters_its_layers_and_one_layer_of_one_micro_batch() -> None:
    """Of that layer, its input is kept already. pp2 has 1 and 2 layers, two micro-batches in flight on the first."""
    again, sent = 2 * 8 * (PER_LAYER_TOKEN - 8), 8 * 8 * 8
    assert recomputed("pp2", 0) == 4 * (80 + 496) + 4 * (2 * (2 * 8 * (8 + 2)) + again + sent)
    kept, logits = 2 * 8 * (2 * 8 + 2), 2 * 5 * PER_RESPONSE_TOKEN
    assert again > logits, "so that the peak is in the backward of the last layer, after that of the logits"
    assert recomputed("pp2", 1) == 4 * (2 * 496 + 88) + 4 * (kept + again + sent)


def test_recomputing_rank_whose_logits_are_larger_peaks_before_its_backward() -> None:
    long = Batch(sequences=8, prompt_tokens=3, response_tokens=500)
    wide = MODEL.model_copy(update={"vocab_size": 1000})
    state = state_spec(wide, "float32", counter_tensors(), optimizer=True)
    plan = replace(plan_of(ACTOR_TRAINING, "tp1"), recompute=True)
    (found,) = native_cost(wide, "float32", 1e9, 1 << 20, 16).footprints(plan, state, long)
    kept, logits = 2 * 503 * (3 * 8 + 2), 2 * 500 * (3 * 8 + 2 * 1000)
    assert found.live == 4 * (3 * 496 + 2 * 8 * 1000 + 8) + 4 * (kept + logits)


def test_updates_and_replicas_share_the_sequences() -> None:
    whole = footprint(ACTOR_TRAINING, "pp2", 0, replace(BATCH, sequences=2))
    assert footprint(ACTOR_TRAINING, "pp2", 0, replace(BATCH, updates=4)) == whole
    assert footprint(ACTOR_TRAINING, "pp2 dp4", 0) == whole


def test_micro_batch_is_no_larger_than_the_rows_of_a_replica() -> None:
    assert footprint(ACTOR_TRAINING, "tp1 dp8", micro_batch=4) == footprint(ACTOR_TRAINING, "tp1 dp8", micro_batch=1)


def test_inference_holds_parameters_and_the_logits_of_one_micro_batch() -> None:
    assert footprint(REFERENCE_INFERENCE, "tp1") == (4 * 1656 + COUNTERS, 4 * 2 * 5 * 10)
    assert footprint(REFERENCE_INFERENCE, "tp2") == (4 * 856 + COUNTERS, 4 * 2 * 5 * 5)


def test_inference_in_a_pipeline_holds_what_it_sent_forward_only() -> None:
    assert footprint(REFERENCE_INFERENCE, "pp2", 0)[1] == 4 * 8 * 8 * 8
    assert footprint(REFERENCE_INFERENCE, "pp2", 1)[1] == 4 * 2 * 5 * 10


def test_inference_is_not_divided_by_updates() -> None:
    assert footprint(REFERENCE_INFERENCE, "pp2", 0, replace(BATCH, updates=4))[1] == 4 * 8 * 8 * 8


@pytest.mark.parametrize(("tp", "heads"), [(1, 2), (2, 1), (4, 1)])
def test_generation_holds_the_kv_cache_of_one_wave_and_a_shared_head_whole(tp: int, heads: int) -> None:
    assert footprint(ACTOR_GENERATION, f"tp{tp}")[1] == 4 * (2 * 3 * 2 * heads * 2 * 8)


def test_device_of_several_stages_holds_all_states_and_the_largest_of_what_lives_in_turn() -> None:
    stages = [
        plan_of(ACTOR_TRAINING, "tp1", devices=[1]),
        plan_of(ACTOR_GENERATION, "tp1 dp2", devices=[1, 4]),
        plan_of(REFERENCE_INFERENCE, "tp1", devices=[4]),
    ]
    served = 4 * 1656 + COUNTERS
    assert peaks(stages) == {1: 19904 + served + 35392, 4: 2 * served + 4 * 384}


def test_every_device_of_the_plan_is_predicted_and_no_other() -> None:
    assert list(peaks([plan_of(ACTOR_TRAINING, "tp2 pp2 dp2", devices=[9, 3, 5, 7, 1, 0, 2, 8])])) == [
        0,
        1,
        2,
        3,
        5,
        7,
        8,
        9,
    ]


quick = settings(deadline=None, max_examples=60)
"""Enough to see a wrong direction; no deadline, since a busy machine is no failure."""

STAGES = st.sampled_from([ACTOR_TRAINING, REFERENCE_INFERENCE, ACTOR_GENERATION])
LAYOUTS = st.builds(Layout, tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 3]))
BATCHES = st.builds(
    Batch,
    sequences=st.integers(1, 40),
    prompt_tokens=st.integers(1, 20),
    response_tokens=st.integers(1, 20),
    updates=st.integers(1, 4),
)


def all_peaks(stage: str, layout: Layout, dp: int, micro_batch: int, batch: Batch) -> list[int]:
    """The peaks of the first replica's ranks."""
    plan = StagePlan(stage, layout, dp, tuple(range(layout.size * dp)), micro_batch)
    found = cost_of().peaks(Plan(0, {stage: plan}), STATES, batch)
    return [found[rank] for rank in range(layout.size)]


def none_smaller(high: list[int], low: list[int]) -> bool:
    return all(a >= b for a, b in zip(high, low, strict=True))


@quick
@given(STAGES, LAYOUTS, st.integers(1, 4), st.integers(1, 8), BATCHES, st.integers(0, 9), st.integers(0, 9))
def test_longer_sequences_never_take_less(
    stage: str, layout: Layout, dp: int, micro: int, batch: Batch, prompt: int, response: int
) -> None:
    longer = replace(batch, prompt_tokens=batch.prompt_tokens + prompt, response_tokens=batch.response_tokens + response)
    assert none_smaller(all_peaks(stage, layout, dp, micro, longer), all_peaks(stage, layout, dp, micro, batch))


@quick
@given(STAGES, LAYOUTS, st.integers(1, 4), st.integers(1, 8), BATCHES, st.integers(1, 20))
def test_more_sequences_never_take_less(stage: str, layout: Layout, dp: int, micro: int, batch: Batch, more: int) -> None:
    larger = replace(batch, sequences=batch.sequences + more)
    assert none_smaller(all_peaks(stage, layout, dp, micro, larger), all_peaks(stage, layout, dp, micro, batch))


@quick
@given(STAGES, LAYOUTS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), BATCHES)
def test_more_replicas_never_take_more_on_a_device(
    stage: str, layout: Layout, dp: int, more: int, micro: int, batch: Batch
) -> None:
    assert none_smaller(all_peaks(stage, layout, dp, micro, batch), all_peaks(stage, layout, dp + more, micro, batch))


@quick
@given(STAGES, LAYOUTS, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), BATCHES)
def test_larger_micro_batch_never_takes_less(
    stage: str, layout: Layout, small: int, times: int, whole: int, batch: Batch
) -> None:
    rows = replace(batch, sequences=small * times * whole, updates=1)
    high, low = (all_peaks(stage, layout, 1, micro, rows) for micro in (small * times, small))
    assert none_smaller(high, low)


@quick
@given(STAGES, st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.integers(1, 4), st.integers(1, 8), BATCHES)
def test_twice_the_tensor_parallelism_never_takes_more_on_a_device(
    stage: str, tp: int, pp: int, dp: int, micro: int, batch: Batch
) -> None:
    wide, narrow = (all_peaks(stage, Layout(degree, pp), dp, micro, batch) for degree in (2 * tp, tp))
    assert max(wide) <= max(narrow)


@quick
@given(STAGES, LAYOUTS, st.integers(1, 4), st.integers(1, 8), BATCHES)
def test_double_precision_takes_twice_as_much_but_for_the_counters(
    stage: str, layout: Layout, dp: int, micro: int, batch: Batch
) -> None:
    plan = StagePlan(stage, layout, dp, tuple(range(layout.size * dp)), micro)
    wide = {stage: state_spec(MODEL, "float64", counter_tensors(), optimizer=stage == ACTOR_TRAINING)}
    single = cost_of().peaks(Plan(0, {stage: plan}), STATES, batch)
    double = cost_of("float64").peaks(Plan(0, {stage: plan}), wide, batch)
    assert double == {device: 2 * peak - COUNTERS for device, peak in single.items()}


@quick
@given(st.sampled_from([1, 2, 3]), st.integers(1, 8), st.integers(1, 24))
def test_no_more_rows_are_counted_than_a_replica_has(pp: int, micro: int, rows: int) -> None:
    """However the rows are cut into micro-batches, no rank keeps or sends more than all of them."""
    assume(rows % micro == 0 or pp == 1)
    batch = replace(BATCH, sequences=rows)
    layout = Layout(1, pp)
    assert none_smaller(
        all_peaks(ACTOR_TRAINING, layout, 1, rows, batch), all_peaks(ACTOR_TRAINING, layout, 1, micro, batch)
    )


def test_last_micro_batch_is_counted_with_the_rows_it_has() -> None:
    batch = replace(BATCH, sequences=6)
    assert footprint(ACTOR_TRAINING, "pp2", 0, batch, micro_batch=5) <= footprint(ACTOR_TRAINING, "pp2", 0, batch, 6)


def test_sizes_of_the_tiny_model_are_those_of_its_definition() -> None:
    assert sum(prod(t.shape) for t in SERVED.tensors if t.shape) == 1656 == MODEL.num_parameters
