"""Streams: what a bucket opens and frees, and that memory stays where the plan says."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.feasibility import check_memory
from nereus.transition.ops import Transition
from tests.builders import STAGE, make_emus, make_model, make_plan, make_state
from tests.layout.bounds import held_bytes
from tests.transition.scenarios import planned, wrong_shards
from tests.transition.weighing import TRAINED, Streaming, Weighed, streaming

SEEDS = range(120)
DENSE = make_state(make_model(tied=False, num_layers=12), optimizer=True)


@cache
def replayed(seed: int) -> tuple[Streaming, Weighed]:
    job = streaming(seed)
    return job, job.run()


def peaks(job: Streaming) -> Counter[EndpointId]:
    """The planned peak of each endpoint."""
    return Counter(check_memory(job.transition, job.current, {STAGE: job.state}, 1e15).peak_bytes)


# --- what moves --------------------------------------------------------------------------------------------------------


def test_streams_leave_the_global_state_cut_afresh() -> None:
    for seed in SEEDS:
        job, run = replayed(seed)
        assert wrong_shards(job.state, run, job.transition.result) == []


def test_buckets_have_every_tensor_once() -> None:
    for seed in SEEDS:
        job, _ = replayed(seed)
        for op in job.transition.ops:
            if op.stream:
                assert sorted(job.refs(op, slice(None))) == sorted(tensor.ref for tensor in job.state.tensors)


def test_buckets_open_half_of_the_bound_or_a_single_tensor() -> None:
    """The other half is for what is received of it and still in a buffer."""
    for seed in SEEDS:
        job, run = replayed(seed)
        for op in job.transition.ops:
            taken = {(*move.target, tensor.ref) for move in op.handovers for tensor in move.tensors}
            for bucket in op.stream.buckets if op.stream else ():
                opened = [
                    sum(run.sizes[key] for ref in bucket if (key := (endpoint, emu.unit, ref)) not in taken)
                    for emu in op.makes
                    for endpoint in emu.endpoints
                ]
                assert len(bucket) == 1 or max(opened) <= op.bucket_bytes // 2


def test_stream_moves_what_the_operation_moves_at_once() -> None:
    for seed in SEEDS[:40]:
        job, _ = replayed(seed)
        for op in job.transition.ops:
            if op.stream:
                assert sum(op.of_tensors(bucket).num_bytes for bucket in op.stream.buckets) == op.num_bytes


def test_streams_are_the_same_each_time() -> None:
    for seed in SEEDS[:20]:
        assert streaming(seed).transition == streaming(seed).transition


# --- what it frees -----------------------------------------------------------------------------------------------------


def test_streams_free_only_units_that_end_and_each_site_once() -> None:
    for seed in SEEDS:
        job, _ = replayed(seed)
        freed = [site for op in job.transition.ops for site in op.frees]
        assert len(freed) == len(set(freed))
        assert not {site.unit for site in freed} & {emu.unit for emu in job.transition.result}


@pytest.mark.parametrize("fuse", [True, False])
def test_streams_on_any_devices_free_nothing_that_is_read_later(fuse: bool) -> None:
    """The interpreter fails on a read of what is gone."""
    for seed in SEEDS:
        job = streaming(seed, any_devices=True, fuse=fuse)
        assert wrong_shards(job.state, job.run(), job.transition.result) == []


@pytest.mark.parametrize(("source", "target"), [("tp2", "pp2"), ("dp2 zero1", "tp2"), ("fsdp2", "tp2"), ("pp3", "tp3")])
def test_stream_that_is_all_of_a_transition_leaves_nothing_of_the_old_units(source: str, target: str) -> None:
    current = make_emus(source)
    job = Streaming(TRAINED, current, planned(TRAINED, current, make_plan(target), stream=True, bucket_bytes=200))
    left = {site: shards for site, shards in job.run().shards.items() if site[1] in {emu.unit for emu in current}}
    assert not any(left.values())


# --- memory ------------------------------------------------------------------------------------------------------------


def test_planned_peak_of_a_stream_is_that_of_a_replay() -> None:
    for seed in SEEDS:
        job, run = replayed(seed)
        assert peaks(job) == run.peak, seed


def extra(job: Streaming, run: Weighed) -> dict[EndpointId, int]:
    """By how much an endpoint's peak exceeds what it holds before and after, and two buckets and a tensor more."""
    bucket_bytes = next(op.bucket_bytes for op in job.transition.ops if op.stream)
    ends = held_bytes(job.state, job.current) | held_bytes(job.state, job.transition.result)
    allowed = {e: ends[e] + 2 * bucket_bytes + run.largest[e] for e in run.peak}
    return {endpoint: peak - allowed[endpoint] for endpoint, peak in run.peak.items() if peak > allowed[endpoint]}


def test_stream_takes_two_buckets_and_a_tensor_more_than_before_or_after() -> None:
    for seed in SEEDS:
        job, run = replayed(seed)
        if len(job.transition.ops) == 1:
            assert extra(job, run) == {}, seed


@pytest.mark.parametrize(("source", "target"), [("tp2", "pp2"), ("tp2 pp2", "tp4"), ("fsdp4", "tp2 pp2")])
def test_stream_of_many_tensors_takes_two_buckets_and_a_tensor_more(source: str, target: str) -> None:
    current = make_emus(source)
    job = Streaming(DENSE, current, planned(DENSE, current, make_plan(target), stream=True, bucket_bytes=4096))
    assert extra(job, job.run()) == {}


@pytest.mark.parametrize(
    ("source", "target", "devices"),
    [
        pytest.param("pp2", "pp4", [0, 3, 2, 4], id="a later Destroy"),
        pytest.param("dp2", "tp2 dp2", [3, 1, 2, 0], id="two readers"),
    ],
)
def test_stream_takes_two_buckets_more_where_other_operations_follow(source: str, target: str, devices: list[int]) -> None:
    current = make_emus(source)
    plan = make_plan(target, devices=devices)
    job = Streaming(TRAINED, current, planned(TRAINED, current, plan, stream=True, bucket_bytes=64))
    assert extra(job, job.run()) == {}


@pytest.mark.parametrize(("source", "target"), [("tp2", "tp1"), ("pp4", "pp2"), ("tp4 pp2", "tp2 dp3")])
def test_stream_frees_what_the_operation_frees_at_once(source: str, target: str) -> None:
    current, plan = make_emus(source), make_plan(target)
    freed = [
        {site for op in planned(TRAINED, current, plan, stream=stream).ops for site in op.frees} for stream in (False, True)
    ]
    assert freed[0] <= freed[1]


def peak_of(current: tuple[Emu, ...], transition: Transition, state: StateSpec) -> int:
    return max(check_memory(transition, current, {STAGE: state}, 1e15).peak_bytes.values())


def test_stream_of_a_deep_model_needs_little_more_than_the_model() -> None:
    """At once, half of the model before and half after stand side by side."""
    current, target = make_emus("tp2"), make_plan("pp2")
    held = max((held_bytes(DENSE, current) | held_bytes(DENSE, make_emus("pp2"))).values())
    at_once, stream = (planned(DENSE, current, target, stream=stream, bucket_bytes=held // 16) for stream in (False, True))
    assert peak_of(current, at_once, DENSE) > 1.8 * held
    assert peak_of(current, stream, DENSE) < 1.3 * held
