"""A weight sync has room beside the units: what a plan leaves for gradients and caches, and no more.

The bytes are counted from the units' shards, as the ledger of a device counts them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.control.programs import LEAST_SYNC_BUCKET, weight_sync
from nereus.control.state import JobState
from nereus.planner.native import NativePricing
from tests.control.harness import Core
from tests.runtime.loop import adaptive_config

MIB = 1 << 20


def with_memory(state: JobState, memory: int | None) -> JobState:
    """The same job on devices of another size."""
    pricing = state.pricing
    assert isinstance(pricing, NativePricing)
    job = pricing.job
    device = job.cluster.device.model_copy(update={"memory": memory})
    job = job.model_copy(update={"cluster": job.cluster.model_copy(update={"device": device})})
    return replace(state, learnt=replace(pricing, job=job))


def fullest(state: JobState) -> int:
    """Bytes of units on the fullest endpoint that takes part in the sync, tensor by tensor."""
    held: dict[str, int] = {}
    for emu in state.bound:
        spec = state.config.states[emu.stage]
        for rank, endpoint in enumerate(emu.endpoints):
            for tensor, boxes in spec.shards(emu.layout, rank, emu.optimizer).items():
                held[endpoint] = held.get(endpoint, 0) + tensor.item_bytes * sum(box.volume for box in boxes)
    return max(held[endpoint] for endpoint in weight_sync(state).members)


@pytest.fixture
def state() -> JobState:
    return Core(adaptive_config()).start(range(4)).state


def test_sync_on_a_roomy_device_has_the_bucket_of_the_policy(state: JobState) -> None:
    assert weight_sync(with_memory(state, 1 << 40)).bucket_bytes == state.config.policy.bucket


@pytest.mark.parametrize("room", [2 * MIB, 300_000])
def test_sync_has_half_of_what_the_units_leave_each_way(state: JobState, room: int) -> None:
    headroom = state.config.policy.headroom
    usable = fullest(state) + room
    small = with_memory(state, -int(-usable // (1 - headroom)))
    assert weight_sync(small).bucket_bytes == pytest.approx(room // 2, abs=2)
    assert fullest(small) + 2 * weight_sync(small).bucket_bytes <= small.pricing.usable_bytes


def test_sync_without_room_has_the_least_that_moves_anything(state: JobState) -> None:
    assert weight_sync(with_memory(state, fullest(state))).bucket_bytes == LEAST_SYNC_BUCKET


def test_device_whose_memory_is_not_known_has_the_bucket_of_the_policy(state: JobState) -> None:
    assert weight_sync(with_memory(state, None)).bucket_bytes == state.config.policy.bucket
