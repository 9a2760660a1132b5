"""The 1F1B schedule of every rank, and a whole pipeline of ranks that send without waiting and wait to receive."""

from __future__ import annotations

from itertools import product

import pytest

from nereus.rl.pipeline import one_forward_one_backward

DEPTHS = [(pp, num_micro) for pp, num_micro in product(range(1, 7), range(1, 9))]


def schedule(num_micro: int, pp: int, rank: int) -> list[tuple[str, int]]:
    return list(one_forward_one_backward(num_micro, pp, rank))


@pytest.mark.parametrize(("pp", "num_micro"), DEPTHS)
def test_every_micro_batch_goes_forward_once_and_then_backward_once_in_order(pp: int, num_micro: int) -> None:
    for rank in range(pp):
        steps = schedule(num_micro, pp, rank)
        assert [index for way, index in steps if way == "F"] == list(range(num_micro))
        assert [index for way, index in steps if way == "B"] == list(range(num_micro))
        assert all(steps.index(("F", index)) < steps.index(("B", index)) for index in range(num_micro))


@pytest.mark.parametrize(("pp", "num_micro"), DEPTHS)
def test_warm_up_is_as_long_as_there_are_ranks_behind(pp: int, num_micro: int) -> None:
    """Narayanan et al. 2021, section 2.2: rank r runs pp - r - 1 forwards first, then alternates forward and backward."""
    for rank in range(pp):
        ways = "".join(way for way, _ in schedule(num_micro, pp, rank))
        warm_up = min(pp - rank - 1, num_micro)
        assert ways == "F" * warm_up + "FB" * (num_micro - warm_up) + "B" * warm_up


@pytest.mark.parametrize(("pp", "num_micro"), DEPTHS)
def test_no_rank_has_more_micro_batches_in_flight_than_ranks_from_it_on(pp: int, num_micro: int) -> None:
    for rank in range(pp):
        in_flight = most = 0
        for way, _ in schedule(num_micro, pp, rank):
            in_flight += 1 if way == "F" else -1
            most = max(most, in_flight)
        assert most == min(pp - rank, num_micro)


@pytest.mark.parametrize(("pp", "num_micro"), DEPTHS)
def test_pipeline_that_sends_at_once_and_waits_to_receive_runs_to_its_end(pp: int, num_micro: int) -> None:
    steps = {rank: schedule(num_micro, pp, rank) for rank in range(pp)}
    sent: set[tuple[str, int, int]] = set()
    """What has arrived: (way, micro-batch, receiving rank)."""
    moved = True
    while moved:
        moved = False
        for rank, left in steps.items():
            while left:
                way, index = left[0]
                first, following = (0, rank + 1) if way == "F" else (pp - 1, rank - 1)
                if rank != first and (way, index, rank) not in sent:
                    break
                sent.add((way, index, following))
                left.pop(0)
                moved = True
    assert not any(steps.values()), f"blocked for ever: {steps}"


@pytest.mark.parametrize("pp", range(1, 7))
def test_pipeline_takes_the_textbook_time(pp: int) -> None:
    """With equal forwards and backwards of one unit each: num_micro of both and pp - 1 of both for the bubble."""
    num_micro = 8
    steps = {rank: schedule(num_micro, pp, rank) for rank in range(pp)}
    ends: dict[tuple[str, int, int], int] = {}
    clock = dict.fromkeys(range(pp), 0)
    while any(steps.values()):
        for rank, left in steps.items():
            while left:
                way, index = left[0]
                before = (way, index, rank + (-1 if way == "F" else 1))
                outer = rank == (0 if way == "F" else pp - 1)
                if not outer and before not in ends:
                    break
                clock[rank] = max(clock[rank], 0 if outer else ends[before]) + 1
                ends[way, index, rank] = clock[rank]
                left.pop(0)
    assert max(clock.values()) == 2 * (num_micro + pp - 1)
