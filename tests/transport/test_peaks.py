"""What a transition really takes of each device's memory is what its plan said, and a stream takes a bucket each way."""

from __future__ import annotations

from math import inf

import pytest

from nereus.emu.unit import Emu
from nereus.errors import OutOfDeviceMemory
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.feasibility import check_memory, fitted
from nereus.transition.ops import program_for
from tests.builders import ENDPOINT_OF, STAGE, make_emus
from tests.transport.carrying import Mode, plan_of, transition_to
from tests.transport.chain import MODES
from tests.transport.fleet import Fleet
from tests.transport.models import mixed_state

pytestmark = pytest.mark.gloo

PAIRS = [
    ("tp2 pp2 dp2", "tp1 pp4 dp2"),
    ("tp4", "fsdp2 dp2"),
    ("tp2 dp3 zero1", "pp2 dp3 zero1"),
    ("tp2", "tp2 dp4"),
    ("dp8", "tp3 dp2"),
]


def carried_out(fleet: Fleet, source: str, target: str, state: StateSpec, mode: Mode) -> tuple[Emu, ...]:
    """A transition from newborn units, whose peaks are checked against the plan's; returns the new units."""
    current = make_emus(source, epoch=fleet.next_epoch())
    fleet.seed(current, state)
    epoch = fleet.next_epoch()
    transition = transition_to(current, plan_of(current, target), state, epoch, mode)
    fleet.call_all(fleet.endpoints, "reset_peak")
    fleet.install(transition.ops, {STAGE: state}, epoch)
    fleet.run_dag(transition)
    peaks = fleet.call_all(fleet.endpoints, "peak_bytes")
    planned = check_memory(transition, current, {STAGE: state}, inf).peak_bytes
    assert peaks == dict.fromkeys(fleet.endpoints, 0) | dict(planned)
    return transition.result


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_measured_peak_is_the_planned_one(fleet: Fleet, mode: Mode) -> None:
    for source, target in PAIRS:
        carried_out(fleet, source, target, mixed_state(), mode)
        fleet.bind(())


def held(emus: tuple[Emu, ...], state: StateSpec) -> dict[EndpointId, int]:
    return {e: state.shard_bytes(u.layout, r, optimizer=u.optimizer) for u in emus for r, e in enumerate(u.endpoints)}


def test_stream_takes_at_most_a_bucket_each_way(fleet: Fleet) -> None:
    state, mode = mixed_state(), Mode(stream=True, bucket_bytes=4096)
    source, target = PAIRS[0]
    result = carried_out(fleet, source, target, state, mode)
    before, after = held(make_emus(source), state), held(result, state)
    for endpoint, peak in fleet.call_all(fleet.endpoints, "peak_bytes").items():
        assert peak <= max(before[endpoint], after[endpoint]) + 2 * mode.bucket_bytes


def test_transition_that_fits_only_as_streams_is_carried_out_on_devices_that_small() -> None:
    state, current = mixed_state(), make_emus("tp2 pp2")
    at_once = transition_to(current, plan_of(current, "fsdp4"), state, 1, Mode(bucket_bytes=4096))
    peak = max(check_memory(at_once, current, {STAGE: state}, inf).peak_bytes.values())
    streams, check = fitted(at_once, current, {STAGE: state}, peak - 1)
    assert check.violation is None
    fleet = Fleet((ENDPOINT_OF[device] for device in range(4)), capacity_bytes=max(check.peak_bytes.values()))
    try:
        fleet.seed(current, state)
        for endpoint in fleet.endpoints:
            fleet.post(endpoint, "install", program_for(endpoint, 1, at_once.ops, (), {STAGE: state}))
        refused = [fleet.failure(endpoint) for endpoint in fleet.endpoints]
        assert all(isinstance(error, OutOfDeviceMemory) for error in refused)
        fleet.install(streams.ops, {STAGE: state}, 2)
        assert fleet.run_dag(streams) == at_once.num_bytes
        assert fleet.wrong_tensors(streams.result, state, state) == []
    finally:
        fleet.settle()
        fleet.close()
