"""Which job has which device of a cluster: what was decided and what happened, as records, and what they come to.

    Submitted -> (queue) -> Granted -> Launched -> Granted | Withdrawn -> Freed ... -> Ended          NodesSeen

A pool device is granted to one job at most. A job that must leave one keeps it until it says that nothing of it is there. A
restarted controller reads its records again; what they come to is a function of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nereus.emu.plan import DeviceId
from nereus.errors import NereusError
from nereus.policy.seating import Node, PoolDevice, Seats, Shape, still_there


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job wants devices."""

    id: str
    """Of the request, which may come more than once."""
    job: str
    """Its name, which no other job of the controller has ever had."""
    resource: str
    """What Ray calls its kind of device."""
    shape: Shape
    needed: tuple[DeviceId, ...]
    """Devices without which it cannot start."""
    wanted: tuple[DeviceId, ...]
    """All that it can use."""
    is_live: bool
    """Whether what it has may change while it runs."""
    seconds: Mapping[int, float]
    """Predicted L_step by number of devices, where a plan fits."""
    stamp: str
    """When it came, as the name of its run's folder says it."""
    body: str
    """The job file and what it goes on from, as its runner is told (JSON)."""

    @property
    def run(self) -> str:
        """The name of its run, which no other has."""
        return f"{self.job}-{self.stamp}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSeen:
    """These nodes are there, with their devices of one kind."""

    resource: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A job has these devices for itself."""

    job: str
    seats: Seats


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A job's processes were started."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What a job gains by devices was predicted anew, from how it runs."""

    job: str
    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """A job must leave these devices."""

    job: str
    places: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """A job has left these devices: nothing of it is on them."""

    job: str
    places: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job is over, and its processes with it."""

    job: str
    state: str
    """`finished`, `failed` or `cancelled`."""
    reason: str


Record = Submitted | NodesSeen | Granted | Launched | Priced | Withdrawn | Freed | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One job, and what it has."""

    told: Submitted
    seats: Seats = field(default_factory=dict)
    """Its devices, those that it must leave included."""
    leaving: frozenset[DeviceId] = frozenset()
    """Those that it must leave for another job."""
    is_launched: bool = False
    seconds: Mapping[int, float] = field(default_factory=dict)
    ended: Ended | None = None

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its first devices."""
        return self.ended is None and not self.is_launched and not self.seats

    @property
    def is_running(self) -> bool:
        return self.ended is None and not self.is_queued

    @property
    def least(self) -> int:
        """The fewest devices it can run on: of those for which a plan is known to fit; a fixed job has what it has."""
        if self.is_queued or not self.told.is_live:
            return len(self.told.needed)
        return min(self.seconds, default=len(self.told.needed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """Everything that the records come to."""

    nodes: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)
    """By kind of device."""
    claims: Mapping[str, Claim] = field(default_factory=dict)
    """All jobs in the order in which they came, ended ones included."""

    def of_kind(self, resource: str) -> list[Claim]:
        """The jobs that are not over and want this kind of device, in the order in which they came."""
        return [claim for claim in self.claims.values() if claim.ended is None and claim.told.resource == resource]

    def launched(self) -> list[Claim]:
        """The jobs whose processes were started, and that are not over."""
        return [claim for claim in self.claims.values() if claim.is_launched and claim.ended is None]

    def on_node(self, node: str) -> int:
        """How many devices of a node jobs have, those that they are leaving included."""
        return sum(seat.node == node for claim in self.claims.values() for seat in claim.seats.values())

    def taken(self, resource: str) -> set[PoolDevice]:
        """The pool devices that some job has."""
        return {seat for claim in self.of_kind(resource) for seat in claim.seats.values()}

    def staying(self, claim: Claim) -> dict[DeviceId, PoolDevice]:
        """The devices of a job that it need not leave."""
        stays = {node.id for node in self.nodes.get(claim.told.resource, ()) if not node.is_leaving}
        return {p: seat for p, seat in claim.seats.items() if seat.node in stays and p not in claim.leaving}

    def notices(self, claim: Claim) -> dict[DeviceId, float | None]:
        """The devices that a job must leave, and when they are gone; None: once it has left them."""
        ends = {node.id: node.gone_s for node in self.nodes.get(claim.told.resource, ()) if node.is_leaving}
        own = {place: ends[seat.node] for place, seat in claim.seats.items() if seat.node in ends}
        return {**dict.fromkeys(claim.leaving), **own}


def after(grants: Grants, records: Iterable[Record]) -> Grants:
    """What records come to. Raises NereusError for one that would give a pool device to two jobs."""
    for record in records:
        grants = _after(grants, record)
    return grants


def _after(grants: Grants, record: Record) -> Grants:
    if isinstance(record, NodesSeen):
        return _seen(grants, record)
    if isinstance(record, Submitted):
        claim = Claim(told=record, seconds=record.seconds)
        return replace(grants, claims={**grants.claims, record.job: claim})
    claim = grants.claims[record.job]
    match record:
        case Granted():
            _check(grants, claim, record)
            claim = replace(claim, seats={**claim.seats, **record.seats})
        case Launched():
            claim = replace(claim, is_launched=True)
        case Priced():
            claim = replace(claim, seconds=record.seconds)
        case Withdrawn():
            claim = replace(claim, leaving=claim.leaving.union(record.places) & set(claim.seats))
        case Freed():
            kept = {place: seat for place, seat in claim.seats.items() if place not in record.places}
            claim = replace(claim, seats=kept, leaving=claim.leaving & set(kept))
        case Ended():
            claim = replace(claim, seats={}, leaving=frozenset(), ended=record)
    return replace(grants, claims={**grants.claims, record.job: claim})


def _seen(grants: Grants, record: NodesSeen) -> Grants:
    """The nodes that are there; seats on others are gone with them. A job that has not begun starts with all or none."""
    claims = dict(grants.claims)
    for claim in grants.of_kind(record.resource):
        kept = still_there(claim.seats, record.nodes)
        if not claim.is_launched and len(kept) < len(claim.seats):
            kept = {}
        claims[claim.told.job] = replace(claim, seats=kept, leaving=claim.leaving & set(kept))
    return Grants(nodes={**grants.nodes, record.resource: record.nodes}, claims=claims)


def _check(grants: Grants, claim: Claim, record: Granted) -> None:
    taken, given = grants.taken(claim.told.resource), list(record.seats.values())
    twice = sorted(taken.intersection(given)) or len(set(given)) < len(given) or set(record.seats) & set(claim.seats)
    if claim.ended is not None or twice:
        raise NereusError(f"{record.job}: {record.seats} must not be granted: one of them is taken, or the job is over")
