"""Streams of the lanes: each waits on the device for what the others have launched, and memory for all who may use it.

A stand-in for torch.cuda keeps what each kernel is ordered after; where there is a GPU the same is done for real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import CanonicalTensor, Kind, Place
from nereus.transport.memory import DeviceMemory
from nereus.transport.store import UnitStore
from nereus.transport.streams import Streams

CUDA = torch.device("cuda", 0)
"""Named only, where there is no GPU."""

LANES = ("compute", "transfer", "control")

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="real streams need a GPU; the stand-in shows the order")


@dataclass(eq=False)
class StandIn:
    """What torch.cuda offers to Streams: kernels are numbers, and each knows all that have to be done before it."""

    streams: list[StandInStream] = field(default_factory=list)
    current: StandInStream | None = None
    launched: int = 0
    after: dict[int, set[int]] = field(default_factory=dict)
    """By kernel: those that are done when it begins."""

    def Stream(self, device: torch.device) -> StandInStream:  # noqa: N802
        self.streams.append(StandInStream(self))
        return self.streams[-1]

    def Event(self) -> StandInEvent:  # noqa: N802
        return StandInEvent()

    @contextmanager
    def stream(self, stream: StandInStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def launch(self) -> int:
        """A kernel on the current stream."""
        assert self.current is not None
        self.launched += 1
        self.after[self.launched] = set(self.current.done)
        self.current.done |= {self.launched}
        return self.launched


@dataclass(eq=False)
class StandInStream:
    cuda: StandIn
    done: set[int] = field(default_factory=set)
    """What its next kernel comes after."""

    def wait_event(self, event: StandInEvent) -> None:
        self.done |= event.done


@dataclass(eq=False)
class StandInEvent:
    done: set[int] = field(default_factory=set)
    waited: int = 0

    def record(self, stream: StandInStream) -> None:
        self.done = set(stream.done)

    def synchronize(self) -> None:
        self.waited += 1


@dataclass
class StandInTensor:
    used_on: list[StandInStream] = field(default_factory=list)

    def record_stream(self, stream: StandInStream) -> None:
        self.used_on.append(stream)


@given(st.lists(st.tuples(st.sampled_from(LANES), st.integers(0, 3)), max_size=20))
def test_every_kernel_comes_after_all_that_any_lane_had_launched_before_its_own_was_entered(
    calls: list[tuple[str, int]],
) -> None:
    cuda = StandIn()
    streams = Streams(CUDA, cuda)
    for lane, kernels in calls:
        before = set(range(1, cuda.launched + 1))
        with streams.lane(lane):
            for _ in range(kernels):
                assert before <= cuda.after[cuda.launch()]


def test_each_lane_has_one_stream_of_its_own() -> None:
    cuda = StandIn()
    streams = Streams(CUDA, cuda)
    used = []
    for lane in (*LANES, *LANES):
        with streams.lane(lane):
            used.append(cuda.current)
    assert used[:3] == used[3:] == cuda.streams
    assert len(cuda.streams) == len(LANES)
    assert cuda.current is None


def test_lanes_that_are_in_at_once_do_not_wait_for_each_other() -> None:
    """Transfer is entered while compute launches: what it does not see yet it is not ordered after."""
    cuda = StandIn()
    streams = Streams(CUDA, cuda)
    with streams.lane("compute"):
        first = cuda.launch()
        with streams.lane("transfer"):
            assert first not in cuda.after[cuda.launch()]
        cuda.launch()
    with streams.lane("transfer"):
        assert cuda.after[cuda.launch()] >= {1, 2, 3}


def test_lane_that_fails_is_waited_for_all_the_same() -> None:
    cuda = StandIn()
    streams = Streams(CUDA, cuda)

    def fail() -> None:
        with streams.lane("transfer"):
            cuda.launch()
            raise RuntimeError("a peer is gone")

    with pytest.raises(RuntimeError, match="a peer is gone"):
        fail()
    with streams.lane("compute"):
        assert 1 in cuda.after[cuda.launch()]


def test_memory_that_is_released_is_kept_for_every_lane_that_has_a_stream() -> None:
    cuda, tensor = StandIn(), StandInTensor()
    streams = Streams(CUDA, cuda)
    streams.released(tensor)
    assert tensor.used_on == []
    for lane in LANES:
        with streams.lane(lane):
            cuda.launch()
    streams.released(tensor)
    assert tensor.used_on == cuda.streams


def test_processor_has_no_streams_and_waits_for_nothing() -> None:
    cuda, tensor = StandIn(), StandInTensor()
    streams = Streams(torch.device("cpu"), cuda)
    with streams.lane("compute"):
        assert cuda.current is None
    streams.wait("compute")
    streams.released(tensor)
    assert (cuda.streams, tensor.used_on) == ([], [])


# --- on a GPU ----------------------------------------------------------------------------------------------------------

ROUNDS = 50
SIDE = 1024
TENSOR = CanonicalTensor("w", Kind.PARAMETER, (SIDE, SIDE), "float32", Place.EVERYWHERE)
WHOLE = Box.whole(TENSOR.shape)


@on_a_gpu
def test_transfer_reads_what_compute_has_written_and_compute_what_transfer_has_brought() -> None:
    """Long products on one stream, copies on another: without the events a copy would read what is not written yet."""
    streams = Streams(CUDA)
    with streams.lane("compute"):
        weights = torch.zeros(SIDE, SIDE, device=CUDA)
        busy = torch.eye(SIDE, device=CUDA)
    for number in range(1, ROUNDS):
        with streams.lane("compute"):
            for _ in range(8):
                busy = busy @ busy
            weights.copy_(busy.mul(number))
        with streams.lane("transfer"):
            copied = weights.clone()
        with streams.lane("compute"):
            weights.zero_()
            brought = copied.diagonal().sum()
        streams.wait("transfer")
        streams.wait("compute")
        assert float(brought) == number * SIDE


@on_a_gpu
def test_shards_that_are_released_are_not_given_away_while_another_stream_reads_them() -> None:
    """Opened by the transfer lane, read by a slow kernel of the compute lane, released, and opened again at once."""
    streams = Streams(CUDA)
    store, unit = UnitStore(CUDA, DeviceMemory("cuda", 1 << 30), streams), UnitId("actor_training", 0, 0)
    with streams.lane("compute"):
        busy = torch.eye(SIDE, device=CUDA)
    for number in range(1, ROUNDS):
        with streams.lane("transfer"):
            store.open(unit, {TENSOR: (WHOLE,)})
            store.write(unit, TENSOR.ref, WHOLE).fill_(number)
            store.land(unit, TENSOR.ref, WHOLE)
        with streams.lane("compute"):
            for _ in range(8):
                busy = busy @ busy
            seen = (busy @ store.read(unit, TENSOR.ref, WHOLE)).sum()
        store.release(unit)
        with streams.lane("other"):
            torch.full((SIDE, SIDE), -1.0, device=CUDA)
        streams.wait("compute")
        assert float(seen) == pytest.approx(number * SIDE * SIDE, rel=1e-6)


@on_a_gpu
def test_host_waits_for_one_lane_and_not_for_the_others() -> None:
    streams = Streams(CUDA)
    with streams.lane("compute"):
        torch.cuda._sleep(2_000_000_000)
        slow = torch.cuda.Event()
        slow.record()
    other = Streams(CUDA)
    with other.lane("transfer"):
        torch.zeros(8, device=CUDA)
    other.wait("transfer")
    assert not slow.query(), "the transfer lane waited for what it does not need"
    streams.wait("compute")
    assert slow.query()
