"""One transition on a fleet, with every check that holds after each: elements, digests, bytes, memory, peaks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from nereus.emu.digest import Digest
from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.transition.arrange import arrange
from nereus.transition.collectives import GroupKey
from nereus.transition.dag import transition_dag
from nereus.transition.feasibility import check_memory
from nereus.transition.ops import BUCKET_BYTES, Transition
from nereus.transition.residency import most_resident
from nereus.transition.streaming import streamed
from tests.builders import DEVICE_OF, ENDPOINT_OF, ONE_NODE, STAGE, degrees, make_layout
from tests.transport.fleet import Fleet


@dataclass(frozen=True)
class Mode:
    """How a transition is carried out."""

    fuse: bool = True
    stream: bool = False
    bucket_bytes: int = BUCKET_BYTES

    def __str__(self) -> str:
        return f"{'fused' if self.fuse else 'unfused'} {'streamed' if self.stream else 'at once'} {self.bucket_bytes}"


AT_ONCE = Mode()


def plan_of(
    current: tuple[Emu, ...], text: str, devices: Iterable[int] | None = None, state: StateSpec | None = None
) -> StagePlan:
    """The plan of "tp2 pp1 dp4" or "fsdp2 dp2 zero1" on these devices, the first by default.

    Whole units stay where they can; with a state, as many of its bytes as can.
    """
    layout, found = make_layout(text), degrees(text)
    on = range(layout.size * found["dp"]) if devices is None else devices
    wanted = StagePlan(STAGE, layout, found["dp"], tuple(on), zero1=bool(found["zero"]))
    plan = arrange(current, wanted, DEVICE_OF, ONE_NODE)
    return plan if state is None else most_resident(plan, current, state, DEVICE_OF, ONE_NODE)


def transition_to(
    current: tuple[Emu, ...], plan: StagePlan, state: StateSpec, epoch: int, mode: Mode = AT_ONCE
) -> Transition:
    """The transition to a plan; with a stream, every operation that makes units is one."""
    targets, states = {STAGE: plan}, {STAGE: state}
    transition = transition_dag(
        {STAGE: current}, targets, states, ENDPOINT_OF, epoch, fuse=mode.fuse, bucket_bytes=mode.bucket_bytes
    )
    return streamed(transition, {STAGE}, current, states) if mode.stream else transition


def carry_out(
    fleet: Fleet,
    current: tuple[Emu, ...],
    plan: StagePlan,
    state: StateSpec,
    mode: Mode = AT_ONCE,
    keep: set[GroupKey] | None = None,
) -> tuple[Emu, ...]:
    """Carry out the transition to a plan; returns the new units, on which everything else was checked."""
    epoch = fleet.next_epoch()
    transition = transition_to(current, plan, state, epoch, mode)
    before = fleet.digests(current, state)
    fleet.call_all(fleet.endpoints, "reset_peak")
    fleet.install(transition.ops, {STAGE: state}, epoch)
    assert fleet.run_dag(transition) == transition.num_bytes
    check_peaks(fleet, transition, current, state)
    assert fleet.wrong_tensors(transition.result, state, state) == []
    assert all_equal([*before, *fleet.digests(transition.result, state)])
    fleet.bind(transition.result, keep)
    check_ledgers(fleet, transition.result, state)
    return transition.result


def check_peaks(fleet: Fleet, transition: Transition, current: tuple[Emu, ...], state: StateSpec) -> None:
    """No endpoint has held more since the peaks were reset than the plan says."""
    planned = check_memory(transition, current, {STAGE: state}, inf).peak_bytes
    peaks = fleet.call_all(fleet.endpoints, "peak_bytes")
    assert {endpoint: peak for endpoint, peak in peaks.items() if peak > planned.get(endpoint, 0)} == {}


def check_ledgers(fleet: Fleet, emus: Iterable[Emu], state: StateSpec) -> None:
    """Every endpoint holds exactly its shards of these units, and nothing else is reserved."""
    expected = dict.fromkeys(fleet.endpoints, 0)
    for emu in emus:
        for rank, endpoint in enumerate(emu.endpoints):
            expected[endpoint] += state.shard_bytes(emu.layout, rank, optimizer=emu.optimizer)
    for endpoint, (used, held) in fleet.call_all(fleet.endpoints, "memory_use").items():
        assert held == used["units"] == sum(used.values()) == expected[endpoint]


def all_equal(digests: list[Digest]) -> bool:
    return all(digest == digests[0] for digest in digests)
