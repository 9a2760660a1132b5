"""One worker's endpoint without a process: what it serves, what it refuses, and that nothing stays in its ledger."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from nereus.emu.unit import Emu
from nereus.errors import OutOfDeviceMemory, StaleUnitError
from nereus.layout.catalog import UnitId
from nereus.layout.layout import Layout
from nereus.layout.tensors import Kind
from nereus.rl.assemble import assemble
from nereus.rl.endpoint import NativeEndpoint
from nereus.rl.generate import Generate, Generated, Sampling, generate
from nereus.rl.programs import Request
from nereus.rl.train import Apply, Prepared, Score, accumulate, score
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING
from nereus.spec.training import Optimizer
from nereus.transport.communicators import Communicators
from nereus.transport.memory import DeviceMemory
from tests.rl.group import CPU, Alone, StrongWeights, make_accumulate, make_rollout, make_shape, make_state, whole_parameters

SHAPE = make_shape()
ROLLOUT = make_rollout(SHAPE, ((2, 5), (4, 4), (1, 3), (3, 6)))
OPTIMIZER = Optimizer(learning_rate=0.01)
UNIT = Emu(UnitId(ACTOR_TRAINING, 0, 0), Layout(), ("d0.0",))
NEXT = Emu(UnitId(ACTOR_TRAINING, 0, 1), Layout(), ("d0.0",))

GENERATE = Generate(torch.arange(3), ((1, 2), (3,), (4, 5, 6)), Sampling(4, 1.0, None, 0), 2)
SCORE = Score(ROLLOUT, 2, 0.8)
ACCUMULATE = make_accumulate(ROLLOUT, micro_batch=2)
GRADIENT_BYTES = 8 * SHAPE.num_parameters


def apply_number(update: int) -> Apply:
    return Apply(update, update, 4 * update, 1.0, OPTIMIZER)


class Served:
    """An endpoint that serves one training unit in epoch 0."""

    def __init__(self, *, capacity: int = 1 << 28, shape: ModelShape = SHAPE, bound: bool = True) -> None:
        torch.set_num_threads(1)
        self.memory = DeviceMemory("d0", capacity)
        self.endpoint = NativeEndpoint(
            endpoint="d0.0",
            device=CPU,
            memory=self.memory,
            speed=None,
            shape=shape,
            communicators=Communicators(HashStore(), "d0.0", CPU, timeout_s=1.0),
            weights=StrongWeights(),
        )
        self.endpoint.seed([UNIT], {ACTOR_TRAINING: make_state(shape)})
        if bound:
            self.endpoint.bind(0, (UNIT,), frozenset())
        self.state_bytes = self.memory.used_bytes

    def run(self, request: Request, *, unit: UnitId = UNIT.unit, epoch: int = 0) -> Any:
        return self.endpoint.compute(unit, epoch, request).result

    def state(self) -> dict[str, torch.Tensor]:
        return {f"{p.ref}": p.values for kind in Kind for p in self.endpoint.read(UNIT.unit, kind)}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_seeded_unit_has_the_first_weights_and_zero_moments_and_counters() -> None:
    served = Served()
    pieces = served.endpoint.read(UNIT.unit, Kind.PARAMETER)
    found = assemble(make_state(SHAPE), pieces, Kind.PARAMETER)
    assert same(found, whole_parameters(SHAPE))
    for kind in (Kind.EXP_AVG, Kind.EXP_AVG_SQ, Kind.SCALAR):
        assert not any(piece.values.any() for piece in served.endpoint.read(UNIT.unit, kind))


def test_seed_opens_only_units_that_live_here() -> None:
    served = Served()
    elsewhere = Emu(UnitId(ACTOR_GENERATION, 0, 0), Layout(), ("d1.0",))
    served.endpoint.seed([elsewhere], {ACTOR_GENERATION: make_state(SHAPE)})
    assert served.memory.used_bytes == served.state_bytes == make_state(SHAPE).shard_bytes(Layout(), 0)


def test_read_gives_copies() -> None:
    served = Served()
    before = served.state()
    for piece in served.endpoint.read(UNIT.unit, Kind.PARAMETER):
        piece.values.zero_()
    assert same(before, served.state())


@pytest.mark.parametrize(("unit", "epoch"), [(NEXT.unit, 0), (UNIT.unit, 1), (UNIT.unit, -1)])
def test_call_for_a_unit_or_an_epoch_that_is_not_bound_is_refused(unit: UnitId, epoch: int) -> None:
    served = Served()
    with pytest.raises(
        StaleUnitError, match=f"endpoint d0.0 serves epoch 0; unit {unit} of epoch {epoch} is not bound here"
    ):
        served.run(SCORE, unit=unit, epoch=epoch)
    assert served.memory.used_bytes == served.state_bytes


def test_seeded_unit_is_not_served_before_it_is_bound() -> None:
    served = Served(bound=False)
    with pytest.raises(StaleUnitError, match="is not bound here"):
        served.run(SCORE, epoch=-1)


def test_bind_of_a_later_epoch_releases_what_it_does_not_name_and_fences_old_calls() -> None:
    served = Served()
    served.endpoint.seed([NEXT], {ACTOR_TRAINING: make_state(SHAPE)})
    served.endpoint.bind(1, (NEXT,), frozenset())
    assert served.memory.used_bytes == served.state_bytes
    for unit, epoch in ((UNIT.unit, 0), (UNIT.unit, 1), (NEXT.unit, 0)):
        with pytest.raises(StaleUnitError):
            served.run(SCORE, unit=unit, epoch=epoch)
    assert served.run(SCORE, unit=NEXT.unit, epoch=1) is not None


def test_bind_of_an_earlier_epoch_is_refused_and_changes_nothing() -> None:
    served = Served()
    served.endpoint.bind(3, (UNIT,), frozenset())
    with pytest.raises(StaleUnitError, match="serves epoch 3; epoch 2 is behind it"):
        served.endpoint.bind(2, (), frozenset())
    assert served.run(SCORE, epoch=3) is not None


def test_bind_is_idempotent() -> None:
    served = Served()
    served.endpoint.bind(0, (UNIT,), frozenset())
    assert served.memory.used_bytes == served.state_bytes
    assert served.run(SCORE) is not None


def test_bind_reports_the_peak_since_the_last_status_and_begins_a_new_one() -> None:
    served = Served()
    served.endpoint.status()
    with served.memory.holding("a movement", 1000, "buffers"):
        pass
    assert served.endpoint.bind(1, (UNIT,), frozenset()).peak_bytes == served.state_bytes + 1000
    assert served.endpoint.status().peak_bytes == served.state_bytes


def test_status_tells_use_peak_and_units_and_begins_a_new_peak() -> None:
    served = Served()
    served.run(SCORE)
    first, second = served.endpoint.status(), served.endpoint.status()
    assert first.used_bytes == second.used_bytes == second.peak_bytes == served.state_bytes
    assert first.peak_bytes > served.state_bytes
    assert first.units == (UNIT.unit,)


@pytest.mark.parametrize("request_", [GENERATE, SCORE], ids=["generate", "score"])
def test_ledger_is_back_to_the_units_after_a_forward_program(request_: Request) -> None:
    served = Served()
    assert served.run(request_) is not None
    assert served.memory.used_bytes == served.state_bytes


def test_ledger_holds_gradients_from_accumulate_to_apply() -> None:
    served = Served()
    for update in (1, 2, 3):
        assert isinstance(served.run(ACCUMULATE), Prepared)
        assert served.memory.used_bytes == served.state_bytes + GRADIENT_BYTES
        served.run(apply_number(update))
        assert served.memory.used_bytes == served.state_bytes


def test_second_accumulate_replaces_the_gradients_of_the_first() -> None:
    once, twice = Served(), Served()
    twice.run(make_accumulate(ROLLOUT, seed=9))
    for served in (once, twice):
        served.run(ACCUMULATE)
        assert served.memory.used_bytes == served.state_bytes + GRADIENT_BYTES
        served.run(apply_number(1))
    assert same(once.state(), twice.state())


def test_gradients_that_were_never_applied_are_gone_at_the_boundary() -> None:
    served = Served()
    served.run(ACCUMULATE)
    served.endpoint.bind(1, (UNIT,), frozenset())
    assert served.memory.used_bytes == served.state_bytes
    with pytest.raises(StaleUnitError, match="accumulate comes first"):
        served.run(apply_number(1), epoch=1)


def test_apply_without_accumulate_is_refused() -> None:
    served = Served()
    before = served.state()
    with pytest.raises(StaleUnitError, match=r"has no gradients for update 1: accumulate comes first"):
        served.run(apply_number(1))
    assert same(before, served.state())


def test_apply_that_is_sent_again_does_nothing() -> None:
    served = Served()
    served.run(ACCUMULATE)
    served.run(apply_number(1))
    before = served.state()
    served.run(apply_number(1))
    assert same(before, served.state())


def test_apply_that_is_refused_gives_its_gradients_back_or_keeps_them() -> None:
    served = Served()
    served.run(ACCUMULATE)
    with pytest.raises(StaleUnitError):
        served.run(apply_number(2))
    served.endpoint.bind(1, (UNIT,), frozenset())
    assert served.memory.used_bytes == served.state_bytes


def peak_of(request: Request) -> int:
    """Bytes above the unit's state that a request takes at most."""
    served = Served()
    served.endpoint.status()
    served.run(request)
    return served.endpoint.status().peak_bytes - served.state_bytes


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("request_", [GENERATE, SCORE], ids=["generate", "score"])
def test_forward_program_that_does_not_fit_leaves_the_endpoint_as_it_was(request_: Request, share: float) -> None:
    served = Served(capacity=make_state(SHAPE).shard_bytes(Layout(), 0) + int(share * peak_of(request_)))
    before = served.state()
    with pytest.raises(OutOfDeviceMemory, match="device d0"):
        served.run(request_)
    gc.collect()
    assert served.memory.used_bytes == served.state_bytes
    assert same(before, served.state())


@pytest.mark.parametrize(
    "share",
    [
        0.0,
        0.3,
        0.9,
    ],
)
def test_accumulate_that_runs_out_of_memory_leaves_the_endpoint_as_it_was_and_a_smaller_one_runs(share: float) -> None:
    """With a third of the activations there is room for micro-batches of one row."""
    large, small = (make_accumulate(ROLLOUT, micro_batch=size) for size in (4, 1))
    above = peak_of(large) - GRADIENT_BYTES
    capacity = make_state(SHAPE).shard_bytes(Layout(), 0) + (GRADIENT_BYTES + int(share * above) if share else 0)
    served = Served(capacity=capacity)
    before = served.state()
    with pytest.raises(OutOfDeviceMemory):
        served.run(large)
    gc.collect()
    assert served.memory.by_category()["activations"] == 0
    assert served.memory.by_category()["gradients"] == 0
    assert served.memory.used_bytes == served.state_bytes
    assert same(before, served.state())
    if share > 0.5:
        assert isinstance(served.run(small), Prepared)
        served.run(apply_number(1))
        assert served.memory.used_bytes == served.state_bytes


def test_endpoint_computes_what_a_rank_alone_computes() -> None:
    served, alone = Served(), Alone(SHAPE)
    theirs = generate(alone.view, GENERATE)
    ours = served.run(GENERATE)
    assert isinstance(ours, Generated)
    assert theirs is not None
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(served.run(SCORE), score(alone.view, SCORE))  # type: ignore[arg-type]
    assert served.run(ACCUMULATE) == accumulate(alone.view, ACCUMULATE)[1]
