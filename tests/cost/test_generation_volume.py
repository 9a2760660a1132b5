"""The work of generation: KV cache, waves, and the bandwidth that a token step cannot beat."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.efficiency import Efficiencies
from nereus.cost.generation import (
    Rollout,
    concurrent_sequences,
    decode_phase,
    generation_workload,
    kv_room_bytes,
    kv_token_bytes,
    token_steps,
)
from nereus.cost.operations import OpClass
from tests.cost.accelerators import LLAMA_8B, MIXTRAL, execution

HBM = 3.35e12


def rollout(**changes: Any) -> Rollout:
    """256 sequences of 512 + 1024 tokens, all of a length, with room for all."""
    defaults = {
        "sequences": 256,
        "prompt_tokens": 512,
        "response_tokens": 1024,
        "longest_tokens": 1024,
        "kv_bytes": 1e15,
    }
    return Rollout(**{**defaults, **changes})


def test_a_token_of_llama_8b_keeps_128_kib_of_keys_and_values() -> None:
    assert kv_token_bytes(execution(), LLAMA_8B, 2) == 128 * 1024
    assert kv_token_bytes(execution(tp=8), LLAMA_8B, 2) == 16 * 1024


def test_a_token_step_of_one_sequence_reads_all_weights_once() -> None:
    phase = decode_phase(execution(), LLAMA_8B, 1, 1, 512, 2)
    read = phase.device[0][OpClass.WEIGHTS.position] * HBM
    assert read / 2e9 == pytest.approx(7.5, rel=0.01), "8.03B parameters less the embedding, of which one row is read"


def test_a_sequence_through_experts_reads_its_own_and_a_batch_reads_all() -> None:
    one = decode_phase(execution(), MIXTRAL, 1, 1, 512, 2).device[0][OpClass.WEIGHTS.position] * HBM / 2e9
    many = decode_phase(execution(), MIXTRAL, 1, 256, 512, 2).device[0][OpClass.WEIGHTS.position] * HBM / 2e9
    assert one == pytest.approx(12.7, rel=0.01)
    assert many == pytest.approx(46.6, rel=0.01)


def test_the_memory_for_keys_bounds_what_runs_together() -> None:
    room = rollout(kv_bytes=128 * 1024 * (512 + 512) * 10)
    assert concurrent_sequences(execution(), LLAMA_8B, room) == pytest.approx(10)
    whole = rollout(kv_bytes=room.kv_bytes, reserves=True)
    assert concurrent_sequences(execution(), LLAMA_8B, whole) == pytest.approx(10 * 1024 / 1536)


def test_one_wave_lasts_as_long_as_its_longest_response() -> None:
    assert token_steps(256, 256, rollout(longest_tokens=4096)) == pytest.approx(4096)


def test_equal_responses_end_together_so_the_last_wave_is_whole() -> None:
    assert token_steps(250, 100, rollout()) == pytest.approx(3 * 1024)


def test_unequal_responses_fill_the_waves_and_leave_a_tail() -> None:
    assert token_steps(250, 100, rollout(longest_tokens=4096)) == pytest.approx(2.5 * 1024 + 3072)


def test_room_for_keys_is_what_weights_leave() -> None:
    assert kv_room_bytes(execution(), LLAMA_8B, 80e9) == pytest.approx(80e9 - 16.06e9, rel=1e-3)


def test_a_quantised_model_keeps_embedding_and_head_in_half_precision() -> None:
    quantised = execution(weight_bytes=1)
    ends = 2 * 128_256 * 4096
    assert 80e9 - kv_room_bytes(quantised, LLAMA_8B, 80e9) == pytest.approx(8.03e9 + ends, rel=1e-3)


def test_measured_seconds_of_the_cpu_are_in_the_stage() -> None:
    known = Efficiencies("H100")
    without = known.seconds(generation_workload(execution(), LLAMA_8B, rollout()))
    with_host = known.seconds(generation_workload(execution(), LLAMA_8B, rollout(host_s=30.0)))
    assert with_host - without == pytest.approx(30.0)


@settings(deadline=None)
@given(st.floats(64, 8192), st.floats(1.01, 3), st.sampled_from([1, 2, 4, 8]))
def test_longer_responses_never_take_less(tokens: float, factor: float, tp: int) -> None:
    known, room = Efficiencies("H100"), 40e9

    def seconds(mean: float) -> float:
        wanted = rollout(response_tokens=mean, longest_tokens=2 * mean, kv_bytes=room)
        return known.seconds(generation_workload(execution(tp=tp), LLAMA_8B, wanted))

    assert seconds(tokens * factor) >= seconds(tokens)
