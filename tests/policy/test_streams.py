"""A change of plan that does not fit at once is planned as streams, in buckets of the size that the job gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.policy.proposal import transition_to
from nereus.spec.stages import ACTOR_TRAINING
from tests.builders import make_plan
from tests.policy.snapshots import STATES, everywhere, pricing_of, snapshot_of

KIB = 1 << 10
SNAPSHOT = snapshot_of(everywhere("tp2") | {ACTOR_TRAINING: "tp2"}, bucket_bytes=64 * KIB)
TO_PP2 = {ACTOR_TRAINING: make_plan("pp2", stage=ACTOR_TRAINING)}


def at_once_peak() -> int:
    _, memory = transition_to(SNAPSHOT, TO_PP2, 1)
    return max(memory.peak_bytes.values())


def test_transition_that_fits_has_no_streams() -> None:
    transition, memory = transition_to(SNAPSHOT, TO_PP2, 1)
    assert [op.stream for op in transition.ops] == [None]
    assert memory.violation is None


def test_transition_that_lacks_one_byte_is_a_stream_and_fits() -> None:
    tight = replace(SNAPSHOT, pricing=pricing_of(at_once_peak() - 1, headroom=0.0))
    transition, memory = transition_to(tight, TO_PP2, 1)
    assert all(op.stream for op in transition.ops)
    assert memory.violation is None
    assert max(memory.peak_bytes.values()) <= tight.pricing.usable_bytes


def test_stream_saves_most_of_a_second_copy() -> None:
    tight = replace(SNAPSHOT, pricing=pricing_of(at_once_peak() - 1, headroom=0.0))
    _, memory = transition_to(tight, TO_PP2, 1)
    half = STATES[ACTOR_TRAINING].shard_bytes(make_plan("tp2").layout, 0)
    assert max(memory.peak_bytes.values()) < at_once_peak() - 0.7 * half


@pytest.mark.parametrize("bucket_bytes", [16 * KIB, 64 * KIB, 1 << 20])
def test_operations_have_buckets_of_the_size_that_the_job_gives(bucket_bytes: int) -> None:
    transition, _ = transition_to(replace(SNAPSHOT, bucket_bytes=bucket_bytes), TO_PP2, 1)
    assert {op.bucket_bytes for op in transition.ops} == {bucket_bytes}


def test_transition_to_a_plan_that_does_not_fit_is_refused_with_its_numbers() -> None:
    held = at_once_peak() // 4
    _, memory = transition_to(replace(SNAPSHOT, pricing=pricing_of(held, headroom=0.0)), TO_PP2, 1)
    assert memory.violation is not None
    assert memory.violation.needed_bytes > memory.violation.usable_bytes == held
