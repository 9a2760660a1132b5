"""A pool that changes on schedule: who arrives, who gets notice, who is gone, and that nothing is lost in between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.errors import UserError
from nereus.monitor.pool import PoolEmulator, PoolNews

NUM_DEVICES = 6


def emulator(*counts: int, notice_steps: int = 2, devices: tuple[int, ...] = tuple(range(8))) -> PoolEmulator:
    return PoolEmulator(counts=counts, devices=devices, notice_steps=notice_steps)


@st.composite
def emulators(draw: st.DrawFn) -> PoolEmulator:
    counts = draw(st.lists(st.integers(0, NUM_DEVICES), min_size=1, max_size=25))
    devices = draw(st.permutations(range(100, 100 + NUM_DEVICES)))
    return PoolEmulator(counts=tuple(counts), devices=tuple(devices), notice_steps=draw(st.integers(1, 4)))


def test_pool_starts_with_the_first_devices_and_no_news() -> None:
    pool = emulator(6, 6)
    assert pool.start() == (0, 1, 2, 3, 4, 5)
    assert pool.changes(0).is_empty
    assert pool.changes(1).is_empty


def test_growing_pool_takes_the_first_absent_devices() -> None:
    assert emulator(4, 6, 8).changes(1) == PoolNews(arriving=(4, 5))
    assert emulator(4, 6, 8).changes(2) == PoolNews(arriving=(6, 7))


def test_shrinking_pool_gives_notice_to_the_last_devices_and_ends_them_two_steps_later() -> None:
    pool = emulator(8, 5)
    assert pool.changes(1) == PoolNews(leaving={7: 3, 6: 3, 5: 3})
    assert pool.changes(2).is_empty
    assert pool.changes(3) == PoolNews(gone=(5, 6, 7))
    assert pool.changes(4).is_empty
    assert pool.state(2).there == tuple(range(8))
    assert pool.state(2).staying == pool.state(3).there == (0, 1, 2, 3, 4)


def test_last_node_empties_first_even_after_a_hole() -> None:
    pool = emulator(6, 4, 6, 6, 4, notice_steps=1)
    assert pool.changes(2) == PoolNews(arriving=(6, 7), gone=(4, 5))  # 4 and 5 are still on notice
    assert pool.changes(4) == PoolNews(leaving={7: 5, 6: 5})


def test_notice_is_not_taken_back_and_the_device_may_arrive_again_after_its_end() -> None:
    pool = emulator(8, 7, 8)
    assert pool.changes(1) == PoolNews(leaving={7: 3})
    assert pool.changes(2).is_empty
    assert pool.changes(3) == PoolNews(gone=(7,))
    assert pool.changes(4) == PoolNews(arriving=(7,))


def test_notices_at_different_boundaries_end_at_different_ones() -> None:
    pool = emulator(8, 7, 6)
    assert [pool.changes(step).leaving for step in (1, 2)] == [{7: 3}, {6: 4}]
    assert [pool.changes(step).gone for step in (3, 4)] == [(7,), (6,)]


def test_order_of_the_pool_is_that_of_the_devices_given() -> None:
    pool = emulator(2, 1, 3, devices=(9, 4, 7))
    assert pool.start() == (9, 4)
    assert pool.changes(1) == PoolNews(leaving={4: 3})
    assert pool.changes(2) == PoolNews(arriving=(7,))


@settings(deadline=None)
@given(emulators(), st.integers(0, 35))
def test_news_is_the_same_whether_folded_or_walked(pool: PoolEmulator, step: int) -> None:
    state = pool.state(0)
    for _ in range(step):
        state, news = pool.advance(state)
        assert news == pool.changes(state.step)
    assert state == pool.state(step)


@settings(deadline=None)
@given(emulators())
def test_pool_has_as_many_staying_devices_as_the_schedule_says_or_all_that_are_free(pool: PoolEmulator) -> None:
    state = pool.state(0)
    for step in range(1, len(pool.counts) + 6):
        occupied = set(state.leaving)  # at this boundary on notice, or gone just now
        state, _ = pool.advance(state)
        count = pool.counts[min(step, len(pool.counts) - 1)]
        free = NUM_DEVICES - len(occupied)
        assert len(state.staying) == min(count, free)
    assert len(state.staying) == pool.counts[-1]
    assert not state.leaving


@settings(deadline=None)
@given(emulators())
def test_each_device_arrives_gets_notice_and_is_gone_in_turn(pool: PoolEmulator) -> None:
    """Told from the news alone: what a listener knows of each device is always what the pool says."""
    phase = dict.fromkeys(pool.devices, "absent") | dict.fromkeys(pool.start(), "there")
    ends: dict[int, int] = {}
    for step in range(1, len(pool.counts) + 6):
        news = pool.changes(step)
        named = [*news.arriving, *news.leaving, *news.gone]
        assert len(set(named)) == len(named)
        for device in news.gone:
            assert (phase[device], ends.pop(device)) == ("on notice", step)
            phase[device] = "absent"
        for device, end in news.leaving.items():
            assert (phase[device], end) == ("there", step + pool.notice_steps)
            phase[device], ends[device] = "on notice", end
        for device in news.arriving:
            assert phase[device] == "absent"
            phase[device] = "there"
        assert all(end > step for end in ends.values())
        assert pool.state(step).there == tuple(device for device in pool.devices if phase[device] != "absent")
        assert pool.state(step).leaving == ends


@pytest.mark.parametrize("counts", [(), (9,), (-1, 4)])
def test_schedule_that_the_devices_cannot_follow_is_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="each must be from 0 to the 8 devices"):
        emulator(*counts)


def test_leaving_without_notice_is_refused() -> None:
    with pytest.raises(UserError, match="notice_steps: 0 is not allowed"):
        emulator(8, notice_steps=0)
