"""The work of a model-stage in the native regime, against a count over every layer, token and product, by hand.

The model has hidden 8, 4 query and 2 kv heads of 2, MLP 12, vocabulary 10, 4 layers, untied. `TINY` is that model; sequences
are 3 prompt and 5 response tokens, so 8 in all, and a token attends to 4 on average.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.batch import Batch
from nereus.cost.native import NATIVE, native_cost
from nereus.cost.operations import OpClass
from nereus.cost.volume import Workload
from nereus.emu.unit import counter_tensors
from nereus.layout.dense import state_spec
from nereus.spec.hardware import CPU_BYTES_S
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, STAGES
from tests.builders import make_layout
from tests.cost.native import CALL, COMPUTES, LAUNCHES, PEAK, stage_plan

TINY = ModelShape(
    hidden_size=8, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=2, ffn_size=12, vocab_size=10, tie_embeddings=False
)
BATCH = Batch(sequences=24, prompt_tokens=3, response_tokens=5)
FLOAT32 = 4
LATENCY = dict(NATIVE.reduce_latency_s)


@dataclass(frozen=True)
class Counted:
    """A workload in counts: what its seconds at nominal rates come from."""

    work: Workload

    def seconds(self, *ops: OpClass) -> float:
        """Nominal seconds of these classes: on the slowest rank in each slot, sends, and what is serial."""
        at = [op.position for op in ops]
        slots = sum(
            phase.slots
            * (
                max(d[at].sum() + h[at].sum() for d, h in zip(phase.device, phase.host, strict=True))
                + phase.between[at].sum()
            )
            for phase in self.work.phases
        )
        return float(self.work.repeats * (slots + self.work.serial[at].sum()))

    @property
    def flops(self) -> float:
        return self.seconds(*COMPUTES) * PEAK

    @property
    def calls(self) -> float:
        return self.seconds(*LAUNCHES) / CALL

    @property
    def reduces(self) -> float:
        """TP collectives of two members."""
        return self.seconds(OpClass.TP_LATENCY_NODE) / LATENCY[2]

    @property
    def reduced_bytes(self) -> float:
        """Bytes of all of them, between two members."""
        return self.seconds(OpClass.TP_NODE) * CPU_BYTES_S


def work_of(stage: str, text: str = "tp1", micro_batch: int = 4, batch: Batch = BATCH, model: ModelShape = TINY) -> Counted:
    cost = native_cost(model, "float32", PEAK, 1 << 30, 64)
    return Counted(cost.workload(stage_plan(stage, text, micro_batch), batch))


def product(rows: float, inner: float, columns: float) -> float:
    """FLOPs of (rows x inner) times (inner x columns): two per multiply-add."""
    return 2 * rows * inner * columns


def forward_flops(model: ModelShape, sequences: int, batch: Batch, tp: int = 1) -> float:
    """A forward pass, product by product, on one TP rank when tp divides heads, kv heads, MLP and vocabulary."""
    tokens = batch.prompt_tokens + batch.response_tokens
    return sequences * (
        model.num_layers * tokens * token_flops(model, tokens / 2, tp) + batch.response_tokens * head_flops(model, tp)
    )


def token_flops(model: ModelShape, context: float, tp: int = 1) -> float:
    """One token through one layer."""
    hidden, head_dim = model.hidden_size, model.head_dim
    heads, kv_heads, ffn = model.num_heads // tp, model.num_kv_heads // tp, model.ffn_size // tp
    total = product(1, hidden, heads * head_dim)  # q
    total += product(1, hidden, kv_heads * head_dim)  # k
    total += product(1, hidden, kv_heads * head_dim)  # v
    total += product(1, heads * head_dim, hidden)  # o
    total += product(1, hidden, ffn)  # gate
    total += product(1, hidden, ffn)  # up
    total += product(1, ffn, hidden)  # down
    for _ in range(heads):
        total += product(1, head_dim, context)  # scores
        total += product(1, context, head_dim)  # values
    return total


def head_flops(model: ModelShape, tp: int = 1) -> float:
    """The logits of one token."""
    return product(1, model.hidden_size, model.vocab_size // tp)


# --- FLOPs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("dp", [1, 2, 3])
def test_forward_flops_are_those_of_every_product(dp: int, tp: int) -> None:
    flops = work_of(REFERENCE_INFERENCE, f"tp{tp} dp{dp}").flops
    assert flops == pytest.approx(forward_flops(TINY, 24 // dp, BATCH, tp))


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("dp", [1, 2, 3])
def test_generation_flops_are_those_of_the_prompt_and_of_each_token_but_the_last(dp: int, tp: int) -> None:
    """3 prompt tokens attend to 1.5 on average, the first 4 of 5 response tokens to themselves and all before them."""
    prompt = 3 * token_flops(TINY, 1.5, tp)
    steps = sum(token_flops(TINY, 3 + fed, tp) for fed in (1, 2, 3, 4))
    expected = 24 // dp * (4 * (prompt + steps) + 5 * head_flops(TINY, tp))
    assert work_of(ACTOR_GENERATION, f"tp{tp} dp{dp}").flops == pytest.approx(expected, rel=0.02)


def test_one_sequence_of_the_tiny_model_takes_this_many_flops() -> None:
    layer = 2 * 8 * 8 * (8 + 4 + 4 + 8 + 12 + 12 + 12) + 4 * 2 * (2 * 8 * 2 * 4)
    one = replace(BATCH, sequences=1)
    assert work_of(REFERENCE_INFERENCE, batch=one).flops == pytest.approx(4 * layer + 2 * 5 * 8 * 10)
    assert 4 * layer + 2 * 5 * 8 * 10 == 35_616


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
    whole, large = (work_of(REFERENCE_INFERENCE, "dp3", micro_batch=size) for size in (8, 64))
    assert (whole.flops, whole.calls) == (large.flops, large.calls)


def test_tensor_parallel_rank_that_shares_kv_heads_computes_a_whole_one() -> None:
    """tp 4 of 2 kv heads: each rank has 1 of 4 query heads, 1 kv head, 3 of 12 MLP columns and a quarter of 10 tokens."""
    layer = 2 * 8 * (2 + 2 + 2 + 2 + 3 + 3 + 3) + 4 * 4 * 2
    flops = work_of(REFERENCE_INFERENCE, "tp4", batch=replace(BATCH, sequences=4)).flops
    assert flops == pytest.approx(4 * (8 * 4 * layer + 5 * 2 * 8 * 2.5))


def test_updates_divide_the_rows_of_training_and_add_up_again() -> None:
    split = replace(BATCH, updates=3)
    assert work_of(ACTOR_TRAINING, batch=split).flops == pytest.approx(work_of(ACTOR_TRAINING).flops)
    bubbles = (3 * (2 + 1)) / (6 + 1)
    assert work_of(ACTOR_TRAINING, "pp2", batch=split).flops == pytest.approx(work_of(ACTOR_TRAINING, "pp2").flops * bubbles)


# --- calls and messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("micro_batch", "pp"), [(4, 1), (4, 2), (5, 1), (24, 2), (1, 4), (64, 4)])
def test_pass_makes_a_call_for_each_layer_and_the_head_in_each_slot(micro_batch: int, pp: int) -> None:
    slots = ceil(24 / min(micro_batch, 24)) + pp - 1
    assert work_of(REFERENCE_INFERENCE, f"pp{pp}", micro_batch).calls == pytest.approx(slots * (4 // pp + 1))


def test_training_makes_three_times_the_calls_and_those_of_each_update() -> None:
    forward, optimizer = work_of(REFERENCE_INFERENCE, "pp2").calls, NATIVE.optimizer_calls
    assert work_of(ACTOR_TRAINING, "pp2").calls == pytest.approx(3 * forward + optimizer * 2)
    three = replace(BATCH, updates=3)
    assert work_of(ACTOR_TRAINING, "pp2", batch=three).calls == pytest.approx(3 * (3 * 3 * (2 + 1) + optimizer * 2))


def test_generation_makes_a_call_for_each_layer_and_the_head_at_each_token_of_each_wave() -> None:
    assert work_of(ACTOR_GENERATION, "dp2", micro_batch=12).calls == pytest.approx(5 * (4 + 1))
    assert work_of(ACTOR_GENERATION, "dp2", micro_batch=6).calls == pytest.approx(2 * 5 * (4 + 1))


def test_the_last_wave_steps_as_often_as_a_full_one() -> None:
    calls = work_of(ACTOR_GENERATION, "dp2", micro_batch=5).calls
    assert 3 * 4 * (4 + 1) + 2 * (4 + 1) < calls <= 3 * 5 * (4 + 1)


def test_a_response_of_one_token_is_a_prefill() -> None:
    assert work_of(ACTOR_GENERATION, batch=replace(BATCH, response_tokens=1)).calls == pytest.approx(6 * (4 + 1), rel=1e-4)


def test_without_tensor_pipeline_or_data_parallelism_nothing_is_sent() -> None:
    for stage in STAGES:
        others = set(OpClass) - {*COMPUTES, *LAUNCHES}
        assert work_of(stage).seconds(*others) == 0


def test_tensor_parallel_pass_reduces_twice_a_layer_and_at_both_ends() -> None:
    """In each direction that a slot goes; hidden states of the micro-batch."""
    forward, train = work_of(REFERENCE_INFERENCE, "tp2"), work_of(ACTOR_TRAINING, "tp2")
    assert (forward.reduces, train.reduces) == pytest.approx((6 * (2 * 4 + 2), 6 * 2 * (2 * 4 + 2)))
    assert forward.reduced_bytes == pytest.approx(forward.reduces * 4 * 8 * 8 * FLOAT32)
    assert train.reduced_bytes == pytest.approx(train.reduces * 4 * 8 * 8 * FLOAT32)


def test_tensor_parallel_generation_reduces_hidden_states_of_one_token() -> None:
    """But of the whole prompt at first."""
    work = work_of(ACTOR_GENERATION, "tp2", micro_batch=8)
    assert work.reduces == pytest.approx(3 * 5 * (2 * 4 + 2))
    assert work.reduced_bytes == pytest.approx(3 * (4 + 3) * (2 * 4 + 2) * 8 * 8 * FLOAT32)


def test_pipeline_sends_hidden_states_once_a_slot_and_direction() -> None:
    hop = LATENCY[2] / 2 + 4 * 8 * 8 * FLOAT32 / CPU_BYTES_S
    for stage, hops in ((REFERENCE_INFERENCE, 7), (ACTOR_TRAINING, 14)):
        assert work_of(stage, "pp2").seconds(OpClass.SEND_NODE) == pytest.approx(hops * hop)


def held_parameters(model: ModelShape, text: str, rank: int) -> int:
    """What a rank really holds, from the canonical tensors; the final norm and the counters left out."""
    state, layout = state_spec(model, "float32", counter_tensors(), optimizer=False), make_layout(text)
    return sum(
        box.volume
        for tensor, boxes in state.shards(layout, rank).items()
        if tensor.shape and tensor.name != "model.norm.weight"
        for box in boxes
    )


@pytest.mark.parametrize("layers", [3, 4])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("text", ["tp1", "tp2", "pp2", "tp2 pp2", "pp3"])
def test_replicas_that_train_reduce_the_gradients_of_the_fullest_rank_once_an_update(
    text: str, tied: bool, layers: int
) -> None:
    model = TINY.model_copy(update={"tie_embeddings": tied, "num_layers": layers})
    most = max(held_parameters(model, text, rank) for rank in range(make_layout(text).size))
    work = work_of(ACTOR_TRAINING, f"{text} dp2", model=model, batch=replace(BATCH, updates=3))
    assert work.seconds(OpClass.REDUCE_NODE) == pytest.approx(3 * (LATENCY[2] + FLOAT32 * most / CPU_BYTES_S))


def test_replicas_that_do_not_train_reduce_nothing() -> None:
    for stage in (REFERENCE_INFERENCE, ACTOR_GENERATION):
        assert work_of(stage, "dp2").seconds(OpClass.REDUCE_NODE) == 0


# --- monotone ----------------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["tp1", "tp2", "dp2", "pp2", "tp2 pp2 dp2", "pp4", "dp3"])


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
    for op in OpClass:
        assert before.seconds(op) <= after.seconds(op) * (1 + 1e-9)


@pytest.mark.parametrize("stage", STAGES)
def test_tensor_parallelism_halves_the_products_and_not_the_calls(stage: str) -> None:
    one, two = work_of(stage, "tp1"), work_of(stage, "tp2")
    assert two.flops == pytest.approx(one.flops / 2)
    assert two.calls == one.calls


@pytest.mark.parametrize("stage", STAGES)
def test_more_replicas_divide_the_flops(stage: str) -> None:
    assert work_of(stage, "dp3").flops == pytest.approx(work_of(stage, "dp1").flops / 3)
