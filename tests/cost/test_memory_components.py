"""Memory by component: hand counts of mixed precision, sharding, micro-batches in flight; and the sum is the peak."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.components import Component, MemoryScales, training_components
from nereus.cost.efficiency import Efficiencies
from nereus.cost.execution import MEGATRON, NANOTRON, Recompute
from nereus.cost.generation import Rollout
from nereus.spec.policy import HEADROOM
from tests.cost.accelerators import LLAMA_8B, execution

MODEL = AcceleratorModel(Efficiencies("H100"))
STATE = (Component.PARAMETERS, Component.GRADIENTS, Component.OPTIMIZER)


def _bytes(rows: np.ndarray, *parts: Component, rank: int = 0) -> float:
    return float(sum(rows[rank][tuple(Component).index(part)] for part in parts))


def test_mixed_precision_adamw_keeps_eighteen_bytes_per_parameter() -> None:
    """Rajbhandari et al. 2020 count 2 + 2 + 12; gradients in float32 make it 2 + 4 + 12."""
    rows = training_components(execution(), LLAMA_8B)
    assert _bytes(rows, *STATE) == pytest.approx(18 * 8.03e9, rel=1e-3)


def test_zero1_shares_out_the_twelve_bytes_of_the_optimizer() -> None:
    rows = training_components(execution(dp=8, zero1=True), LLAMA_8B)
    assert _bytes(rows, Component.OPTIMIZER) == pytest.approx(12 / 8 * 8.03e9, rel=1e-3)
    assert _bytes(rows, Component.GRADIENTS) == pytest.approx(4 * 8.03e9, rel=1e-3)


def test_the_first_rank_keeps_as_many_micro_batches_as_there_are_ranks() -> None:
    """Narayanan et al. 2021: 1F1B bounds what is in flight by the depth of the pipeline."""
    rows = training_components(execution(pp=4, sequences=64), LLAMA_8B)
    kept = [_bytes(rows, Component.ACTIVATIONS, rank=rank) for rank in range(4)]
    assert kept == pytest.approx([kept[3] * 4, kept[3] * 3, kept[3] * 2, kept[3]])


def test_recomputation_keeps_two_bytes_per_element_of_a_layers_input() -> None:
    rows = training_components(execution(recompute=Recompute.FULL, pp=2, sequences=1), LLAMA_8B)
    one_layer = 4096 * 2 * LLAMA_8B.kept_outside(1)
    assert _bytes(rows, Component.ACTIVATIONS_OUTSIDE) == pytest.approx(16 * 4096 * 2 * 4096 + one_layer)


def test_logits_are_gone_before_a_layer_is_computed_again() -> None:
    rows = training_components(execution(recompute=Recompute.FULL), LLAMA_8B)
    one_layer = 4096 * 2 * (LLAMA_8B.kept_outside(1) + LLAMA_8B.kept_inside(1))
    assert _bytes(rows, Component.LOGITS) == 8 * 4096 * 128_256 > one_layer
    assert _bytes(rows, Component.ACTIVATIONS) == 0
    narrow = replace(LLAMA_8B, decoder=replace(LLAMA_8B.decoder, vocab_size=16_000))
    rows = training_components(execution(recompute=Recompute.FULL), narrow)
    assert _bytes(rows, Component.LOGITS) == 0
    assert _bytes(rows, Component.ACTIVATIONS) == pytest.approx(4096 * 2 * narrow.kept_inside(1))


def test_sequence_parallelism_shares_out_what_is_outside_of_tp_regions() -> None:
    plain = training_components(execution(tp=8), LLAMA_8B)
    shared = training_components(execution(tp=8, sequence_parallel=True), LLAMA_8B)
    part = Component.ACTIVATIONS_OUTSIDE
    assert _bytes(shared, part) == pytest.approx(_bytes(plain, part) / 8)
    assert _bytes(shared, Component.ACTIVATIONS) == _bytes(plain, Component.ACTIVATIONS)


def test_what_was_gathered_and_kept_is_the_input_of_two_products_whole() -> None:
    """Korthikanti et al. 2022 share out all that is outside, and gather the two inputs again in the backward."""
    shared, kept = (
        training_components(execution(tp=8, sequence_parallel=True, keeps_gathered=kept), LLAMA_8B) for kept in (False, True)
    )
    whole = 2 * 32 * 4096 * 4096 * 2
    part = Component.ACTIVATIONS_OUTSIDE
    assert _bytes(kept, part) - _bytes(shared, part) == pytest.approx(whole * 7 / 8)


def test_what_is_gathered_passes_through_a_buffer_per_direction() -> None:
    alone = training_components(execution(tp=8), LLAMA_8B)
    shared = training_components(execution(tp=8, sequence_parallel=True), LLAMA_8B)
    assert _bytes(alone, Component.SENDS) == 0
    assert _bytes(shared, Component.SENDS) == 2 * 4096 * 4096 * 2


def test_buckets_of_gradients_are_there_for_replicas_only() -> None:
    single = training_components(execution(regime=NANOTRON), LLAMA_8B)
    several = training_components(execution(regime=NANOTRON, dp=4), LLAMA_8B)
    assert _bytes(single, Component.GRADIENTS) == pytest.approx(4 * 8.03e9, rel=1e-3)
    assert _bytes(several, Component.GRADIENTS) == pytest.approx(6 * 8.03e9, rel=1e-3)


@settings(deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 8), st.floats(0, 1e10))
def test_components_add_up_to_the_peak(tp: int, pp: int, micro: int, resident: float) -> None:
    run = execution(tp=tp, pp=pp, micro_batch=micro)
    rows = training_components(run, LLAMA_8B, resident)
    found = MODEL.training(run, LLAMA_8B, resident)
    assert found.peak_bytes == pytest.approx(MODEL.scales.peak_bytes(rows))
    assert found.fits == (found.peak_bytes <= (1 - HEADROOM) * 80 * 2**30)


@settings(deadline=None)
@given(st.floats(256, 65_536), st.floats(1.0, 4.0))
def test_longer_sequences_never_need_less(tokens: float, factor: float) -> None:
    run = execution(tp=2, pp=2, tokens=tokens)
    longer = MODEL.training(replace(run, tokens=tokens * factor), LLAMA_8B)
    assert longer.peak_bytes >= MODEL.training(run, LLAMA_8B).peak_bytes


def test_generation_counts_weights_and_the_cache() -> None:
    rollout = Rollout(sequences=64, prompt_tokens=512, response_tokens=1024, longest_tokens=1024, kv_bytes=1e12)
    found = MODEL.generation(execution(tp=2, tokens=1536), LLAMA_8B, rollout)
    assert found.memory[Component.PARAMETERS] == pytest.approx(8.03e9, rel=1e-3)
    assert found.memory[Component.KV_CACHE] == pytest.approx(64 * (512 + 512) * 64 * 1024)


def test_inference_keeps_one_layer_and_the_logits_of_a_micro_batch() -> None:
    found = MODEL.inference(execution(tokens=2048, micro_batch=4), LLAMA_8B)
    assert found.memory[Component.GRADIENTS] == found.memory[Component.OPTIMIZER] == found.memory[Component.KV_CACHE] == 0
    assert found.memory[Component.LOGITS] == pytest.approx(8 * 4 * 2048 * 128_256)
    trained = MODEL.training(execution(tokens=2048, micro_batch=4), LLAMA_8B)
    assert found.memory[Component.ACTIVATIONS] == pytest.approx(trained.memory[Component.ACTIVATIONS] / 32)


def test_an_idle_model_stage_on_the_device_counts_byte_for_byte() -> None:
    run = execution(tp=8)
    alone, shared = MODEL.training(run, LLAMA_8B), MODEL.training(run, LLAMA_8B, 10e9)
    assert shared.peak_bytes - alone.peak_bytes == pytest.approx(10e9)


def test_measured_peaks_scale_what_they_are_made_of() -> None:
    rows = [training_components(execution(tp=tp, micro_batch=micro), LLAMA_8B) for tp in (2, 4, 8) for micro in (1, 2, 4, 8)]
    truth = MemoryScales({**MemoryScales().values, Component.ACTIVATIONS: (1.4, 0.1)})
    peaks = [truth.peak_bytes(row) for row in rows]
    learnt = MemoryScales().learn(rows, peaks, [max(peaks)] * len(rows))
    assert [learnt.peak_bytes(row) for row in rows] == pytest.approx(peaks, rel=0.05)
    assert learnt.values[Component.ACTIVATIONS][0] > MemoryScales().values[Component.ACTIVATIONS][0]
    assert learnt.values[Component.KV_CACHE] == MemoryScales().values[Component.KV_CACHE]


def test_how_far_a_prediction_is_off_is_that_of_the_peaks_learnt_from() -> None:
    """Peaks that are off by 20 % one way or the other: two thirds of a normal distribution's are within one deviation."""
    rows = [
        training_components(execution(tp=tp, micro_batch=micro, tokens=tokens), LLAMA_8B)
        for tp in (2, 4, 8)
        for micro in (1, 2, 4)
        for tokens in (1024, 2048, 4096, 8192)
    ]
    peaks = [MemoryScales().peak_bytes(row) * (1.2 if n % 2 else 1 / 1.2) for n, row in enumerate(rows)]
    learnt = MemoryScales().learn(rows, peaks, [max(peaks)] * len(rows))
    assert learnt.error == pytest.approx(log(1.2) / 0.6745, rel=0.2)
    assert MemoryScales().learn(rows[:4], peaks[:4], [max(peaks)] * 4).error == MemoryScales().error


def test_a_full_device_says_nothing_of_what_was_asked_of_it() -> None:
    """An allocator holds on to freed blocks until the device is full: from there on its peak is the capacity."""
    rows = [training_components(execution(tp=2, micro_batch=micro), LLAMA_8B) for micro in (1, 2, 4, 8)]
    capacity = MemoryScales().peak_bytes(rows[1])
    learnt = MemoryScales().learn(rows, [min(MemoryScales().peak_bytes(row), capacity) for row in rows], [capacity] * 4)
    assert learnt.peak_bytes(rows[3]) == pytest.approx(MemoryScales().peak_bytes(rows[3]), rel=1e-3)


def test_what_a_run_reports_is_the_peak_of_one_rank_on_a_device() -> None:
    run = execution(pp=4, sequences=1, tokens=16_384)
    first, last = (MODEL.scales.peak_bytes(training_components(run, LLAMA_8B, ranks=(rank,))) for rank in (0, 3))
    assert first < last, "one micro-batch in flight, and the logits on the last rank"
    assert MODEL.reported_peak(run, LLAMA_8B, 0) == pytest.approx(first)
    assert MODEL.reported_peak(run, LLAMA_8B) == pytest.approx(last)
    assert MODEL.reported_peak(replace(run, tokens=1e6), LLAMA_8B) == 80 * 2**30


def test_a_plan_that_may_stall_is_a_gamble_and_one_that_cannot_is_not() -> None:
    run = execution(tp=2, pp=2, micro_batch=4, zero1=True, dp=4, tokens=3500, regime=NANOTRON)
    tight, roomy = MODEL.training(run, LLAMA_8B), MODEL.training(replace(run, micro_batch=1), LLAMA_8B)
    assert 0.95 > tight.peak_bytes / (80 * 2**30) > 0.85 > 1.2 * roomy.peak_bytes / (80 * 2**30)
    assert tight.expected_s > 1.5 * tight.seconds
    assert roomy.expected_s == pytest.approx(roomy.seconds, rel=1e-3)
    calm = MODEL.training(replace(run, regime=MEGATRON), LLAMA_8B)
    assert calm.expected_s == calm.seconds
