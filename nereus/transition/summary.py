"""What a transition between two plans would do, before anything runs: its DAG, bytes, memory, communicators and time.

    two plans + states -> ranks -> transition DAG -> streams where it must -> Summary -> as_dict(), for people and programs

Pure, and it needs no job: device d is endpoint d<d>.0, as in a job that has just started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.unit import Emu, phi
from nereus.errors import LayoutError
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.arrange import arrange
from nereus.transition.dag import Change
from nereus.transition.estimate import LinkRates, transition_seconds
from nereus.transition.feasibility import check_memory
from nereus.transition.ops import BUCKET_BYTES, Op, Transition
from nereus.transition.planning import planned
from nereus.transition.residency import most_resident
from nereus.transition.traffic import missing_bytes, moved_bytes, new_groups
from nereus.transition.verdicts import Found

EPOCH = 1
"""The plan that a transition leads to has one epoch more than the one it starts from."""


REFUSED = Transition((), (), Found.REFUSED_PROVED)
"""What there is where no order exists."""


class Link(StrEnum):
    """Between what bytes go."""

    LOCAL = "local"
    """On one device: a copy into the new unit."""
    NODE = "node"
    """Between two devices of a node."""
    NETWORK = "network"
    """Between nodes."""


class Feasible(StrEnum):
    """Whether a transition can be carried out."""

    FEASIBLE = "feasible"
    INFEASIBLE_MEMORY = "infeasible_memory"
    """Even as a stream it does not fit in memory."""
    INFEASIBLE_ORDER = "infeasible_order"
    """No order of primitives leads there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that the answer depends on."""

    before: Mapping[str, StagePlan]
    after: Mapping[str, StagePlan]
    """The same model-stages."""
    states: Mapping[str, StateSpec]
    devices_per_node: int
    usable_bytes: float = float("inf")
    """Of a device, for state and for the buffers that move it."""
    bucket_bytes: int = BUCKET_BYTES
    keep_order: bool = False
    """Whether the devices of `after` are in rank order already; otherwise ranks are chosen among them."""
    rates: LinkRates = field(default_factory=LinkRates)

    def node_of(self, device: DeviceId) -> int:
        """Devices are numbered in node order."""
        return device // self.devices_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The answer."""

    question: Question
    after: Mapping[str, StagePlan]
    """With the devices in rank order."""
    transition: Transition
    moved: Mapping[tuple[DeviceId, DeviceId], int]
    """Bytes from one device to another, and within one."""
    lower_bound: int
    """Bytes that target devices need and do not hold: no transition to these ranks sends less."""
    peak_bytes: Mapping[DeviceId, int]
    """State and buffers, at the worst moment."""
    feasible: Feasible
    reason: str
    """One sentence."""
    seconds: float

    def link(self, source: DeviceId, target: DeviceId) -> Link:
        """What lies between two devices."""
        if source == target:
            return Link.LOCAL
        node_of = self.question.node_of
        return Link.NODE if node_of(source) == node_of(target) else Link.NETWORK

    @property
    def bytes_by_link(self) -> dict[Link, int]:
        found = dict.fromkeys(Link, 0)
        for pair, num_bytes in self.moved.items():
            found[self.link(*pair)] += num_bytes
        return found

    @property
    def communicators(self) -> tuple[tuple[DeviceId, ...], ...]:
        """The members of each communicator that the transition makes."""
        groups = {key for op in self.transition.ops for key in op.groups}
        return tuple(sorted(tuple(sorted(map(device_of, key.members))) for key in groups))

    def as_dict(self) -> dict[str, Any]:
        """As plain values, stable: what `nereus transition --json` prints."""
        before = self.question.before
        return {
            "stages": {
                stage: {
                    "before": stage_dict(before[stage]),
                    "after": stage_dict(plan),
                    "changes": changes(before[stage], plan),
                }
                for stage, plan in self.after.items()
            },
            "ops": [op_dict(op) for op in self.transition.ops],
            "moves": [
                {"from": source, "to": target, "bytes": num_bytes, "link": str(self.link(source, target))}
                for (source, target), num_bytes in sorted(self.moved.items())
            ],
            "bytes": {**{str(link): size for link, size in self.bytes_by_link.items()}, "lower_bound": self.lower_bound},
            "peak_bytes": {str(device): peak for device, peak in sorted(self.peak_bytes.items())},
            "feasible": {"code": str(self.feasible), "reason": self.reason},
            "found": str(self.transition.found),
            "l_tran_s": self.seconds,
            "communicators": [list(members) for members in self.communicators],
        }


def summarize_transition(question: Question) -> Summary:
    """Plan the transition as a job would, and sum it up."""
    plans = (*question.before.values(), *question.after.values())
    endpoint_of = {device: f"d{device}.0" for device in sorted({device for plan in plans for device in plan.devices})}
    current = {stage: phi(plan, endpoint_of, EPOCH - 1) for stage, plan in question.before.items()}
    after = {stage: _ranked(question, current[stage], plan, endpoint_of) for stage, plan in question.after.items()}
    changed = {stage: plan for stage, plan in after.items() if changes(question.before[stage], plan)}
    states, standing = question.states, [emu for emus in current.values() for emu in emus]
    try:
        change = _change(question, {stage: current[stage] for stage in changed}, changed, endpoint_of)
        transition, feasible, reason = _planned(question, change, standing)
    except LayoutError as error:
        transition, feasible, reason = REFUSED, Feasible.INFEASIBLE_ORDER, str(error)
    return Summary(
        question=question,
        after=after,
        transition=transition,
        moved={(device_of(a), device_of(b)): num_bytes for (a, b), num_bytes in moved_bytes(transition).items()},
        lower_bound=_lower_bound(current, transition, states),
        peak_bytes=_peaks(transition, standing, states),
        feasible=feasible,
        reason=reason,
        seconds=_seconds(question, transition, endpoint_of) if transition.ops else 0.0,
    )


def _change(
    question: Question,
    current: Mapping[str, tuple[Emu, ...]],
    targets: Mapping[str, StagePlan],
    endpoint_of: Mapping[DeviceId, EndpointId],
) -> Change:
    """The model-stages that change."""
    return Change(
        current=current,
        targets=targets,
        states=question.states,
        endpoint_of=endpoint_of,
        epoch=EPOCH,
        node_of={endpoint: question.node_of(device) for device, endpoint in endpoint_of.items()},
        exclusive=lambda a, b: False,
        bucket_bytes=question.bucket_bytes,
    )


def _planned(question: Question, change: Change, before: list[Emu]) -> tuple[Transition, Feasible, str]:
    """The transition, whether it fits, and why; a plan that does not fit itself is no matter of order or streams.

    Raises LayoutError if there is no order.
    """
    states, usable = question.states, question.usable_bytes
    if usable < float("inf"):
        first = next(change.transitions())
        after = [*[emu for emu in before if emu.stage not in change.targets], *first.result]
        for which, emus in (("starts from", before), ("leads to", after)):
            peaks = _peaks(Transition((), ()), emus, states)
            device = max(peaks, key=lambda device: peaks[device])
            if peaks[device] > usable:
                reason = _too_small(f"the plan that it {which}", device, peaks[device], usable)
                return replace(first, found=Found.REFUSED_PROVED), Feasible.INFEASIBLE_MEMORY, reason
    transition, memory = planned(change, before, usable, question.rates)
    if memory.violation is not None:
        found = memory.violation
        reason = _too_small(found.op, device_of(found.endpoint), found.needed_bytes, usable)
        return transition, Feasible.INFEASIBLE_MEMORY, reason
    if usable == float("inf"):
        return transition, Feasible.FEASIBLE, "no memory of a device is given, so none is too small"
    peak = max(memory.peak_bytes.values())
    return transition, Feasible.FEASIBLE, f"at most {peak} bytes are needed on a device, {int(usable)} are usable"


def _seconds(question: Question, transition: Transition, endpoint_of: Mapping[DeviceId, EndpointId]) -> float:
    nodes = {endpoint: question.node_of(device) for device, endpoint in endpoint_of.items()}
    return transition_seconds(transition, new_groups(transition), question.rates, nodes)


def _lower_bound(current: Mapping[str, tuple[Emu, ...]], transition: Transition, states: Mapping[str, StateSpec]) -> int:
    """What the target devices do not hold."""
    results: dict[str, list[Emu]] = {}
    for emu in transition.result:
        results.setdefault(emu.stage, []).append(emu)
    return sum(missing_bytes(current[stage], after, states[stage]) for stage, after in results.items())


def _too_small(what: str, device: DeviceId, needed: int, usable: float) -> str:
    return f"{what} needs {needed} bytes on device {device}, {int(usable)} are usable"


def _peaks(transition: Transition, standing: list[Emu], states: Mapping[str, StateSpec]) -> dict[DeviceId, int]:
    """What each device holds at the worst moment, however much it has."""
    check = check_memory(transition, standing, states, float("inf"))
    return {device_of(endpoint): peak for endpoint, peak in check.peak_bytes.items()}


def device_of(endpoint: EndpointId) -> DeviceId:
    """The device of d<device>.<incarnation>."""
    return int(endpoint[1:].partition(".")[0])


def changes(before: StagePlan, after: StagePlan) -> bool:
    """Whether state moves. The order of replicas counts only where each has a part of the optimizer state."""
    if (before.layout, before.zero1) != (after.layout, after.zero1):
        return True
    if before.zero1:
        return before.groups != after.groups
    return set(before.groups) != set(after.groups)


def _ranked(
    question: Question, current: tuple[Emu, ...], plan: StagePlan, endpoint_of: Mapping[DeviceId, EndpointId]
) -> StagePlan:
    """The plan with its devices in the order in which most state stays where it is."""
    if question.keep_order or not changes(question.before[plan.stage], plan):
        return plan
    owner = {endpoint: device for device, endpoint in endpoint_of.items()}
    nodes = {device: question.node_of(device) for device in endpoint_of}
    arranged = arrange(current, plan, owner, nodes)
    return most_resident(arranged, current, question.states[plan.stage], owner, nodes)


def stage_dict(plan: StagePlan) -> dict[str, Any]:
    """A stage plan as a plan file has it."""
    return {
        "tp": plan.layout.tp,
        "pp": plan.layout.pp,
        "dp": plan.dp,
        "fsdp": plan.layout.fsdp,
        "zero1": plan.zero1,
        "devices": list(plan.devices),
        "micro_batch": plan.micro_batch,
        "recompute": plan.recompute,
    }


def op_dict(op: Op) -> dict[str, Any]:
    """An operation as plain values; `bytes` cross between devices."""
    freed: dict[str, list[DeviceId]] = {}
    for site in op.frees:
        freed.setdefault(str(site.unit), []).append(device_of(site.endpoint))
    return {
        "id": op.id,
        "primitives": list(op.primitives),
        "after": list(op.after),
        "stage": op.stage,
        "makes": {str(emu.unit): [device_of(endpoint) for endpoint in emu.endpoints] for emu in op.makes},
        "frees": freed,
        "bytes": op.num_bytes,
        "mode": "streamed" if op.stream else "at_once",
        "buckets": len(op.stream.buckets) if op.stream else 1,
    }
