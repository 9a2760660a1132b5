"""Streams that stop between two buckets, or in one: they go on from there, or the old units come back as they were."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, Site
from nereus.layout.moves import minimal_moves
from nereus.layout.tensors import CanonicalTensor
from nereus.transition.ops import Op
from nereus.transition.streaming import undone
from tests.builders import make_emus, make_plan
from tests.transition.interpreter import Interpreter
from tests.transition.scenarios import planned, replay, wrong_shards
from tests.transition.weighing import TRAINED, Streaming, streaming

PAIRS = [
    *[("tp2", "pp2"), ("tp2 pp2", "tp4"), ("pp3", "tp3"), ("tp4", "fsdp4"), ("fsdp2", "tp2"), ("tp2 pp3", "pp6")],
    *[("dp2 zero1", "dp3 zero1"), ("tp2 dp2 zero1", "pp2 dp2"), ("dp3", "dp2 zero1"), ("fsdp2 dp2 zero1", "tp4")],
]
"""Transitions that are one operation each."""

each_stream = pytest.mark.parametrize(("source", "target"), PAIRS)


def stream_of(source: str, target: str) -> tuple[Streaming, Op]:
    """A transition, and the stream that it consists of: what a Destroy would release is released by it."""
    current = make_emus(source)
    transition = planned(TRAINED, current, make_plan(target), stream=True, bucket_bytes=64)
    op, *rest = transition.ops
    assert all(other.is_release for other in rest)
    return Streaming(TRAINED, current, transition), op


def some_buckets(op: Op) -> list[int]:
    """Some numbers of buckets: none, one, all but one, all, and two in between."""
    assert op.stream is not None
    count = len(op.stream.buckets)
    assert count > 3
    return sorted({0, 1, count - 1, count, *Random(count).sample(range(count), 2)})


def interrupted(job: Streaming, op: Op, buckets: int) -> Interpreter:
    """The shards after so many buckets."""
    run = Interpreter(job.state, job.current)
    run.run(op, slice(buckets))
    return run


def taken_back(job: Streaming, op: Op, buckets: int) -> Op:
    """The stream that takes so many buckets back to the units that it has freed."""
    freed = {site.unit for site in op.frees}
    return undone(op, buckets, [emu for emu in job.current if emu.unit in freed], job.state, {})


def reported(job: Streaming, run: Interpreter) -> Catalog:
    """What the stores of all endpoints say that they hold."""
    held: dict[Site, dict[CanonicalTensor, tuple[Box, ...]]] = {}
    for emu in (*job.current, *job.transition.result):
        for rank, endpoint in enumerate(emu.endpoints):
            shards = job.state.shards(emu.layout, rank, emu.optimizer)
            open_here = run.shards.get((endpoint, emu.unit), {})
            held[Site(endpoint, emu.unit)] = {t: boxes for t, boxes in shards.items() if t.ref in open_here}
    return Catalog.landed(held)


@each_stream
def test_stream_that_stopped_goes_on_from_the_next_bucket(source: str, target: str) -> None:
    job, op = stream_of(source, target)
    for buckets in some_buckets(op):
        run = interrupted(job, op, buckets)
        run.run(op, slice(buckets, None))
        assert wrong_shards(job.state, run, job.transition.result) == []


@each_stream
def test_stream_that_stopped_in_a_bucket_does_it_again(source: str, target: str) -> None:
    """A bucket's sources live until all members have it, so that what has landed of it can be dropped."""
    job, op = stream_of(source, target)
    for buckets in some_buckets(op)[:-1]:
        run = interrupted(job, op, buckets)
        run.run(op, slice(buckets, buckets + 1), release=False)
        run.drop(op.makes, job.refs(op, slice(buckets, buckets + 1)))
        run.run(op, slice(buckets, None))
        assert wrong_shards(job.state, run, job.transition.result) == []


@each_stream
def test_stream_that_stopped_holds_each_tensor_in_the_old_units_or_in_the_new(source: str, target: str) -> None:
    job, op = stream_of(source, target)
    new, freed = {emu.unit for emu in op.makes}, {site.unit for site in op.frees}
    for buckets in some_buckets(op):
        run, moved = interrupted(job, op, buckets), set(job.refs(op, slice(buckets)))
        every = {tensor.ref for tensor in job.state.tensors}
        stays = {emu.unit: every - moved if emu.unit in freed else every for emu in job.current}
        for (_, unit), shards in run.shards.items():
            assert set(shards) == (moved if unit in new else stays[unit])


@each_stream
def test_what_the_stores_report_of_a_stream_leaves_to_move_what_its_other_buckets_move(source: str, target: str) -> None:
    """The catalog alone says where a stream stands: nothing that has landed would be sent again."""
    job, op = stream_of(source, target)
    assert op.stream is not None
    for buckets in some_buckets(op):
        found = reported(job, interrupted(job, op, buckets))
        wanted = Catalog.of(job.state, job.transition.result)
        left = sum(move.num_bytes for move in minimal_moves(found, wanted) if not move.is_local)
        assert left == sum(op.of_tensors(bucket).num_bytes for bucket in op.stream.buckets[buckets:])


# --- undone ------------------------------------------------------------------------------------------------------------


@each_stream
def test_stream_that_is_undone_gives_the_old_units_back(source: str, target: str) -> None:
    job, op = stream_of(source, target)
    for buckets in some_buckets(op):
        run = interrupted(job, op, buckets)
        run.run(taken_back(job, op, buckets))
        assert wrong_shards(job.state, run, job.current) == []
        assert not any(run.shards.get((endpoint, emu.unit)) for emu in op.makes for endpoint in emu.endpoints)


@each_stream
def test_stream_that_is_undone_may_be_tried_again(source: str, target: str) -> None:
    job, op = stream_of(source, target)
    run = interrupted(job, op, 3)
    run.run(taken_back(job, op, 3))
    run.run(op)
    assert wrong_shards(job.state, run, job.transition.result) == []


@each_stream
def test_undoing_that_stopped_goes_on_from_the_next_bucket(source: str, target: str) -> None:
    job, op = stream_of(source, target)
    run, back = interrupted(job, op, 3), taken_back(job, op, 3)
    run.run(back, slice(1))
    run.run(back, slice(1, None))
    assert wrong_shards(job.state, run, job.current) == []


@each_stream
def test_undoing_takes_the_buckets_back_in_the_opposite_order(source: str, target: str) -> None:
    """So that memory goes back the way it came."""
    job, op = stream_of(source, target)
    back = taken_back(job, op, 3)
    assert op.stream is not None
    assert back.stream is not None
    assert back.stream.buckets == op.stream.buckets[2::-1]
    assert set(back.stream.group.members) == set(back.members)
    assert {emu.unit for emu in back.makes} == {site.unit for site in op.frees}
    assert {site.unit for site in back.frees} == {emu.unit for emu in op.makes}


def test_undoing_nothing_moves_nothing() -> None:
    job, op = stream_of("tp2", "pp2")
    back = taken_back(job, op, 0)
    assert (back.num_bytes, back.copies) == (0, ())


def test_stream_that_freed_all_of_a_unit_and_left_a_device_gives_it_back() -> None:
    """tp3 -> (tp1, pp2): the third device's shard, that a Destroy would release, goes with the stream."""
    current = make_emus("tp3")
    transition = planned(TRAINED, current, make_plan("pp2"), stream=True, bucket_bytes=64)
    job, op = Streaming(TRAINED, current, transition), transition.ops[0]
    run = interrupted(job, op, 2)
    run.run(taken_back(job, op, 2))
    assert wrong_shards(TRAINED, run, current) == []


def test_stream_that_freed_only_a_part_of_a_unit_leaves_the_rest_as_it_is() -> None:
    """Where an operation that cannot join it reads a site too, a stream does not free that; undoing must not open it."""
    partly = 0
    for seed in range(60):
        job = streaming(seed)
        op = job.transition.moving[0] if job.transition.moving else None
        if op is None or op.stream is None or not op.frees:
            continue
        op = replace(op, frees=op.frees[1:])
        back = taken_back(job, op, 1)
        run = replay(job.state, job.current, ())
        run.run(op, slice(1))
        run.run(back)
        assert wrong_shards(job.state, run, job.current) == [], seed
        partly += bool(back.standing)
    assert partly
