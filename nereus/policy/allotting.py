"""Who gets devices, who gives some up, and who waits and why: one look at all jobs of a controller.

    Grants + what each job uses -> allot -> records to write (Granted, Withdrawn), reasons of those who wait, counts

First come, first served, among the jobs that the cluster could serve at all: a job that waits is not passed by a later one.
While it waits for devices that others leave, nobody grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from nereus.emu.plan import DeviceId
from nereus.policy.grants import Claim, Granted, Grants, Withdrawn, after
from nereus.policy.seating import Node, PoolDevice, all_seated, free_devices, seated
from nereus.policy.sharing import Demand, shared_out, wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """What a look at all jobs came to."""

    records: tuple[Granted | Withdrawn, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    """The jobs that wait for their first devices, and why."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many devices each of the others is to have."""
    marginal: Mapping[str, float] = field(default_factory=dict)
    """What the next device would bring each of them: the share by which it shortens its step."""


def allot(grants: Grants, resource: str, used: Mapping[str, Set[DeviceId]]) -> Allotment:
    """Share out the devices of one kind; `used` has the devices of each job on which units lie."""
    claims, nodes = grants.of_kind(resource), grants.nodes.get(resource, ())
    capacity = sum(node.devices for node in nodes if not node.is_leaving)
    waiting, served = _queue(claims, capacity)
    demands = [demand_of(grants, claim) for claim in served]
    counts = shared_out(demands, capacity)
    records: list[Granted | Withdrawn] = []
    for claim, count in zip(served, counts, strict=True):
        places = _surplus(grants, claim, count, used.get(claim.told.job, frozenset()))
        if places:
            records.append(Withdrawn(job=claim.told.job, places=places))
    for claim, count in zip(served, counts, strict=True):
        if claim.is_queued:
            first = _first(after(grants, records), claim, nodes)
            if first is None:
                waiting[claim.told.job] = _room_reason(claim, nodes, grants.taken(resource))
                later = [c.told.job for c in served[served.index(claim) + 1 :] if c.is_queued]
                waiting |= dict.fromkeys(later, f"{claim.told.job} came before it, and waits as well")
                break
            records.append(first)
        more = _growth(after(grants, records), claim.told.job, count, nodes)
        if more is not None and not any(other.is_queued and other is not claim for other in served):
            records.append(more)
    return Allotment(
        records=tuple(records),
        waiting=waiting,
        counts={claim.told.job: count for claim, count in zip(served, counts, strict=True)},
        marginal={c.told.job: d.marginal(n) for c, d, n in zip(served, demands, counts, strict=True)},
    )


def demand_of(grants: Grants, claim: Claim) -> Demand:
    """What a job can do with devices; one that is fixed has just what it needs."""
    least, now = claim.least, len(grants.staying(claim))
    most = len(claim.told.wanted) if claim.told.is_live else least
    return Demand(least=least, most=max(most, least), now=now, seconds=claim.seconds)


def asked_for(grants: Grants, resource: str, least: int, most: int | None) -> int:
    """How many devices of a kind the cluster should have: what the jobs gain enough by, within the operator's bounds.

    Those who wait count as well: that is how a cluster grows for them.
    """
    number = sum(wanted(demand_of(grants, claim)) for claim in grants.of_kind(resource))
    return max(least, number if most is None else min(number, most))


def _queue(claims: list[Claim], capacity: int) -> tuple[dict[str, str], list[Claim]]:
    """Who waits and why; who is served, in order."""
    left = capacity - sum(claim.least for claim in claims if claim.is_running)
    waiting, served, first = dict[str, str](), list[Claim](), ""
    for claim in claims:
        job, need = claim.told.job, claim.least
        if claim.is_running:
            served.append(claim)
        elif need > capacity:
            waiting[job] = f"it needs {need} devices to start; the cluster has {capacity} that stay"
        elif first:
            waiting[job] = f"{first} came before it, and waits as well"
        elif need > left:
            waiting[job] = f"it needs {need} devices to start; the least of the others leave {max(left, 0)} of {capacity}"
            first = job
        else:
            served.append(claim)
            left -= need
    return waiting, served


def _surplus(grants: Grants, claim: Claim, count: int, used: Set[DeviceId]) -> tuple[DeviceId, ...]:
    """Devices that a job must leave to have `count`: unused ones first, then those of the emptiest declared node."""
    staying = grants.staying(claim)
    if not claim.is_running or not claim.told.is_live or len(staying) <= count:
        return ()
    each = claim.told.shape.each
    size = {place: sum(other // each == place // each for other in staying) for place in staying}
    order = sorted(staying, key=lambda place: (place in used, size[place], -place))
    return tuple(sorted(order[: len(staying) - count]))


def _first(grants: Grants, claim: Claim, nodes: tuple[Node, ...]) -> Granted | None:
    """The devices that a job needs to start, all of them or none."""
    told = claim.told
    found = all_seated(told.shape, {}, free_devices(nodes, grants.taken(told.resource)), told.needed)
    return Granted(job=told.job, seats=found) if found is not None else None


def _room_reason(claim: Claim, nodes: tuple[Node, ...], taken: Set[PoolDevice]) -> str:
    free = {node: len(devices) for node, devices in free_devices(nodes, taken).items()}
    need, each = len(claim.told.needed), claim.told.shape.each
    return (
        f"it needs {need} devices to start, up to {each} on one node; {sum(free.values())} are free, "
        f"{max(free.values(), default=0)} on one node, and other jobs have not left theirs yet"
    )


def _growth(grants: Grants, job: str, count: int, nodes: tuple[Node, ...]) -> Granted | None:
    """More devices up to `count`, first on declared nodes that it is on already."""
    claim = grants.claims[job]
    told, missing = claim.told, count - len(grants.staying(claim))
    if not told.is_live or claim.is_queued:
        return None
    found: dict[DeviceId, PoolDevice] = {}
    free, each = free_devices(nodes, grants.taken(told.resource)), told.shape.each
    held = {place // each for place in claim.seats}
    for declared in sorted(range(told.shape.nodes), key=lambda at: (at not in held, at)):
        vacant = [p for p in told.wanted if p // each == declared and p not in claim.seats]
        left = {node: [seat for seat in devices if seat not in found.values()] for node, devices in free.items()}
        found |= seated(told.shape, {**claim.seats, **found}, left, vacant[: max(missing - len(found), 0)])
    return Granted(job=job, seats=found) if found else None
