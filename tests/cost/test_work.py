"""The work of a model-stage against a count over every layer, token and product, by hand.

The model has hidden 8, 4 query and 2 kv heads of 2, MLP 12, vocabulary 10, 4 layers, untied. `TINY` is that model; sequences
are 3 prompt and 5 response tokens, so 8 in all, and a token attends to 4 on average.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.batch import Batch
from nereus.cost.work import OPTIMIZER_CALLS, OpClass, Work, op_class, parameter_count, stage_work
from nereus.emu.plan import StagePlan
from nereus.emu.unit import counter_tensors
from nereus.layout.dense import state_spec
from nereus.layout.layout import Layout
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES
from tests.builders import degrees, make_layout

TINY = ModelShape(
    hidden_size=8, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=2, ffn_size=12, vocab_size=10, tie_embeddings=False
)
BATCH = Batch(sequences=24, prompt_tokens=3, response_tokens=5)
FLOAT32 = 4


def work_of(stage: str, text: str = "tp1", micro_batch: int = 4, batch: Batch = BATCH, model: ModelShape = TINY) -> Work:
    layout, dp = make_layout(text), degrees(text)["dp"]
    plan = StagePlan(stage, layout, dp, tuple(range(layout.size * dp)), micro_batch)
    return stage_work(plan, model, "float32", batch)


def product(rows: float, inner: float, columns: float) -> float:
    """FLOPs of (rows x inner) times (inner x columns): two per multiply-add."""
    return 2 * rows * inner * columns


def forward_flops(model: ModelShape, sequences: int, batch: Batch, tp: int = 1) -> float:
    """A forward pass, product by product, on one TP rank when tp divides heads, kv heads, MLP and vocabulary."""
    hidden, head_dim = model.hidden_size, model.head_dim
    heads, kv_heads, ffn = model.num_heads // tp, model.num_kv_heads // tp, model.ffn_size // tp
    tokens = batch.prompt_tokens + batch.response_tokens
    total = 0.0
    for _ in range(sequences):
        for _ in range(model.num_layers):
            total += product(tokens, hidden, heads * head_dim)  # q
            total += product(tokens, hidden, kv_heads * head_dim)  # k
            total += product(tokens, hidden, kv_heads * head_dim)  # v
            total += product(tokens, heads * head_dim, hidden)  # o
            total += product(tokens, hidden, ffn)  # gate
            total += product(tokens, hidden, ffn)  # up
            total += product(tokens, ffn, hidden)  # down
            for _ in range(heads):
                total += product(tokens, head_dim, tokens / 2)  # scores, over the mean context
                total += product(tokens, tokens / 2, head_dim)  # values
        total += product(batch.response_tokens, hidden, model.vocab_size // tp)  # head, where a token is predicted
    return total


def test_stages_have_the_class_of_what_they_do() -> None:
    assert [op_class(stage) for stage in (ACTOR_GENERATION, REFERENCE_INFERENCE, ACTOR_TRAINING)] == [
        OpClass.DECODE,
        OpClass.FORWARD,
        OpClass.TRAIN,
    ]
    assert op_class("reward_inference") is OpClass.FORWARD
    assert [work_of(stage).op_class for stage in STAGES] == [op_class(stage) for stage in STAGES]


# --- FLOPs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("dp", [1, 2, 3])
@pytest.mark.parametrize("stage", [REFERENCE_INFERENCE, ACTOR_GENERATION])
def test_forward_flops_are_those_of_every_product(stage: str, dp: int, tp: int) -> None:
    flops = work_of(stage, f"tp{tp} dp{dp}").flops
    assert flops == pytest.approx(forward_flops(TINY, 24 // dp, BATCH, tp))


def test_one_sequence_of_the_tiny_model_takes_this_many_flops() -> None:
    layer = 2 * 8 * 8 * (8 + 4 + 4 + 8 + 12 + 12 + 12) + 4 * 2 * (2 * 8 * 2 * 4)
    one = replace(BATCH, sequences=1)
    assert work_of(REFERENCE_INFERENCE, batch=one).flops == 4 * layer + 2 * 5 * 8 * 10 == 35_616


def test_training_takes_three_forward_passes() -> None:
    for text in ("tp1", "tp2", "tp2 dp2", "pp2"):
        assert work_of(ACTOR_TRAINING, text).flops == pytest.approx(3 * work_of(REFERENCE_INFERENCE, text).flops)


def test_pipeline_is_as_slow_as_the_rank_with_the_head() -> None:
    """2 of 4 layers each; the last rank adds the head. 24 rows in micro-batches of 4 are 6, with pp - 1 = 1 more slot."""
    head = product(5, 8, 10)
    body = (forward_flops(TINY, 1, BATCH) - head) / 4
    assert work_of(REFERENCE_INFERENCE, "pp2").flops == pytest.approx((6 + 1) * 4 * (2 * body + head))


def test_pipeline_with_uneven_layers_is_as_slow_as_its_deepest_rank() -> None:
    """3 layers over 2 ranks are 1 and 2."""
    model = TINY.model_copy(update={"num_layers": 3})
    head = product(5, 8, 10)
    body = (forward_flops(model, 1, BATCH) - head) / 3
    assert work_of(REFERENCE_INFERENCE, "pp2", model=model).flops == pytest.approx(7 * 4 * (2 * body + head))


def test_micro_batch_that_is_not_full_takes_a_whole_slot() -> None:
    ten = replace(BATCH, sequences=10)
    assert work_of(REFERENCE_INFERENCE, batch=ten).flops == pytest.approx(forward_flops(TINY, 12, BATCH))


def test_micro_batch_larger_than_the_rows_costs_the_rows() -> None:
    assert work_of(REFERENCE_INFERENCE, "dp3", micro_batch=64) == work_of(REFERENCE_INFERENCE, "dp3", micro_batch=8)


def test_tensor_parallel_rank_that_shares_kv_heads_computes_a_whole_one() -> None:
    """tp 4 of 2 kv heads: each rank has 1 of 4 query heads, 1 kv head, 3 of 12 MLP columns and at most 3 of 10 tokens."""
    layer = 2 * 8 * (2 + 2 + 2 + 2 + 3 + 3 + 3) + 4 * 4 * 2
    assert work_of(REFERENCE_INFERENCE, "tp4", batch=replace(BATCH, sequences=4)).flops == 4 * (
        8 * 4 * layer + 5 * 2 * 8 * 3
    )


def test_updates_divide_the_rows_of_training_and_add_up_again() -> None:
    split = replace(BATCH, updates=3)
    assert work_of(ACTOR_TRAINING, batch=split).flops == work_of(ACTOR_TRAINING).flops
    assert work_of(ACTOR_TRAINING, "pp2", batch=split).flops == work_of(ACTOR_TRAINING, "pp2").flops * (3 * (2 + 1)) / (
        6 + 1
    )


# --- calls and messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("micro_batch", "pp"), [(4, 1), (4, 2), (5, 1), (24, 2), (1, 4), (64, 4)])
def test_pass_makes_a_call_for_each_layer_and_the_head_in_each_slot(micro_batch: int, pp: int) -> None:
    slots = ceil(24 / min(micro_batch, 24)) + pp - 1
    assert work_of(REFERENCE_INFERENCE, f"pp{pp}", micro_batch).calls == slots * (4 // pp + 1)


def test_training_makes_three_times_the_calls_and_those_of_each_update() -> None:
    forward = work_of(REFERENCE_INFERENCE, "pp2").calls
    assert work_of(ACTOR_TRAINING, "pp2").calls == 3 * forward + OPTIMIZER_CALLS * 2
    three = replace(BATCH, updates=3)
    assert work_of(ACTOR_TRAINING, "pp2", batch=three).calls == 3 * (3 * 3 * (2 + 1) + OPTIMIZER_CALLS * 2)


def test_generation_makes_a_call_for_each_layer_and_the_head_at_each_token_of_each_wave() -> None:
    assert work_of(ACTOR_GENERATION, "dp2", micro_batch=12).calls == 5 * (4 + 1)
    assert work_of(ACTOR_GENERATION, "dp2", micro_batch=5).calls == 3 * 5 * (4 + 1)


def test_without_tensor_pipeline_or_data_parallelism_nothing_is_sent() -> None:
    for stage in STAGES:
        work = work_of(stage)
        assert (work.reduces, work.hops, work.gradient_reduces) == (0, 0, 0)


def test_tensor_parallel_pass_reduces_twice_a_layer_and_at_both_ends() -> None:
    """In each direction that a slot goes; hidden states of the micro-batch."""
    forward, train = work_of(REFERENCE_INFERENCE, "tp2"), work_of(ACTOR_TRAINING, "tp2")
    assert (forward.reduces, train.reduces) == (6 * (2 * 4 + 2), 6 * 2 * (2 * 4 + 2))
    assert forward.reduce_bytes == train.reduce_bytes == 4 * 8 * 8 * FLOAT32


def test_tensor_parallel_generation_reduces_hidden_states_of_one_token() -> None:
    work = work_of(ACTOR_GENERATION, "tp2", micro_batch=8)
    assert work.reduces == 3 * 5 * (2 * 4 + 2)
    assert work.reduce_bytes == 8 * 8 * FLOAT32


def test_pipeline_sends_hidden_states_once_a_slot_and_direction() -> None:
    forward, train = work_of(REFERENCE_INFERENCE, "pp2"), work_of(ACTOR_TRAINING, "pp2")
    assert (forward.hops, train.hops) == (7, 14)
    assert forward.hop_bytes == 4 * 8 * 8 * FLOAT32


def test_replicas_that_train_reduce_gradients_once_an_update() -> None:
    assert work_of(ACTOR_TRAINING, "dp2", batch=replace(BATCH, updates=3)).gradient_reduces == 3
    assert work_of(REFERENCE_INFERENCE, "dp2").gradient_reduces == 0
    assert work_of(ACTOR_GENERATION, "dp2").gradient_reduces == 0


def held_parameters(model: ModelShape, text: str, rank: int) -> int:
    """What a rank really holds, from the canonical tensors; the final norm and the counters left out."""
    state, layout = state_spec(model, "float32", counter_tensors(), optimizer=False), make_layout(text)
    return sum(
        box.volume
        for tensor, boxes in state.shards(layout, rank).items()
        if tensor.shape and tensor.name != "model.norm.weight"
        for box in boxes
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("text", ["tp1", "tp2", "pp2", "tp2 pp2", "pp4"])
def test_gradient_bytes_are_those_of_the_parameters_of_a_rank(text: str, tied: bool) -> None:
    model = TINY.model_copy(update={"tie_embeddings": tied})
    size = make_layout(text).size
    most = max(held_parameters(model, text, rank) for rank in range(size))
    assert work_of(ACTOR_TRAINING, f"{text} dp2", model=model).gradient_bytes == FLOAT32 * most


def test_gradient_bytes_of_uneven_pipelines_are_those_of_the_fullest_rank() -> None:
    model = TINY.model_copy(update={"num_layers": 3})
    most = max(held_parameters(model, "pp2", rank) for rank in range(2))
    assert work_of(ACTOR_TRAINING, "pp2 dp2", model=model).gradient_bytes == FLOAT32 * most


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_count_of_one_device_is_that_of_the_model_less_its_final_norm(tied: bool) -> None:
    model = TINY.model_copy(update={"tie_embeddings": tied})
    assert parameter_count(model, Layout(), 0) == model.num_parameters - model.hidden_size


# --- monotone ----------------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["tp1", "tp2", "dp2", "pp2", "tp2 pp2 dp2", "pp4", "dp3"])


def measures(work: Work) -> tuple[float, ...]:
    return (work.flops, work.calls, work.reduces, work.reduce_bytes, work.hops, work.hop_bytes, work.gradient_bytes)


@settings(max_examples=150, deadline=None)
@given(
    stage=st.sampled_from(STAGES),
    text=TEXTS,
    micro_batch=st.integers(1, 12),
    sequences=st.integers(1, 40),
    more=st.tuples(st.integers(0, 9), st.floats(0, 9), st.floats(0, 9), st.integers(0, 4)),
)
def test_more_sequences_tokens_or_layers_are_never_less_work(
    stage: str, text: str, micro_batch: int, sequences: int, more: tuple[int, float, float, int]
) -> None:
    batch = replace(BATCH, sequences=sequences)
    larger = Batch(sequences + more[0], 3 + more[1], 5 + more[2])
    deeper = TINY.model_copy(update={"num_layers": 4 + more[3]})
    before, after = work_of(stage, text, micro_batch, batch), work_of(stage, text, micro_batch, larger, deeper)
    assert all(a <= b + 1e-9 for a, b in zip(measures(before), measures(after), strict=True))


@pytest.mark.parametrize("stage", STAGES)
def test_tensor_parallelism_halves_the_products_and_not_the_calls(stage: str) -> None:
    one, two = work_of(stage, "tp1"), work_of(stage, "tp2")
    assert two.flops == pytest.approx(one.flops / 2)
    assert two.calls == one.calls


@pytest.mark.parametrize("stage", STAGES)
def test_more_replicas_divide_the_flops(stage: str) -> None:
    assert work_of(stage, "dp3").flops == pytest.approx(work_of(stage, "dp1").flops / 3)
