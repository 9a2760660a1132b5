"""What a transition is made of: operations, each compiled to local moves and collectives.

    primitives -> Op: handovers and copies (local) + exchanges (AllGather | Pairwise) -> Program: the ops of one endpoint

All of it is printable data; nothing here knows a tensor or a process group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, Site, StateSpec
from nereus.layout.moves import Move
from nereus.layout.tensors import TensorRef
from nereus.transition.collectives import Exchange, GroupKey, exchange_seen_by, of_tensors
from nereus.transition.verdicts import Found

BUCKET_BYTES = 64 << 20
"""The default bound on buffers: large enough that set-up per message vanishes, small beside a device's memory."""


MIN_TIMEOUT_S = 60.0
"""The least that anything waits for a peer: one may be late for reasons that no estimate knows, such as a busy machine."""


@dataclass(frozen=True, slots=True)
class Stream:
    """How an operation runs in buckets: tensors that move together, one bucket after the other.

    When a bucket has landed on all members, what was read of its tensors is released where the operation frees it.
    """

    group: GroupKey
    """All members, who agree on the bucket to start from."""
    buckets: tuple[tuple[TensorRef, ...], ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One or more primitives (or a weight sync), compiled to handovers, local copies and collectives."""

    id: str
    primitives: tuple[str, ...]
    stage: str
    makes: tuple[Emu, ...]
    """Units that are opened when the operation starts."""
    frees: tuple[Site, ...]
    """What is released with it: at its end by a Destroy, tensor by tensor by a stream. Other inputs live until commit."""
    copies: tuple[Move, ...]
    exchanges: tuple[Exchange, ...]
    after: tuple[str, ...]
    """Operations that must have completed before this one starts."""
    bucket_bytes: int = BUCKET_BYTES
    """The most that an endpoint holds in buffers each way, and that a stream opens at once."""
    message_bytes: int = BUCKET_BYTES
    """The largest message between two endpoints."""
    standing: tuple[Site, ...] = ()
    """Of the units that it makes: what is there already, and stays as it is."""
    handovers: tuple[Move, ...] = ()
    """Local moves of whole shards from units that end: the shard changes hands, and nothing is copied."""
    stream: Stream | None = None
    """How it runs in buckets; None when all of its units are opened at once."""

    @property
    def members(self) -> tuple[EndpointId, ...]:
        """Every endpoint that takes part, sorted."""
        endpoints = {e for emu in self.makes for e in emu.endpoints} | {site.endpoint for site in self.frees}
        endpoints |= {site.endpoint for move in self.local for site in (move.source, move.target)}
        endpoints |= {e for exchange in self.exchanges for e in exchange.group.members}
        return tuple(sorted(endpoints))

    @property
    def groups(self) -> frozenset[GroupKey]:
        """The communicators that it uses."""
        groups = {exchange.group for exchange in self.exchanges}
        return frozenset(groups | {self.stream.group} if self.stream else groups)

    @property
    def local(self) -> tuple[Move, ...]:
        """What stays on its endpoint, whether it is copied or changes hands."""
        return (*self.handovers, *self.copies)

    @property
    def num_bytes(self) -> int:
        """Bytes that cross between endpoints."""
        return sum(exchange.num_bytes for exchange in self.exchanges)

    @property
    def is_release(self) -> bool:
        """Whether it only releases, as a Destroy does."""
        return bool(self.frees) and not self.makes

    @property
    def is_repeatable(self) -> bool:
        """Whether it only refreshes live units, as a weight sync does."""
        return not self.makes and not self.frees

    def seen_by(self, endpoint: EndpointId) -> Op:
        """The part of the operation that concerns one endpoint."""
        return replace(
            self,
            makes=tuple(
                emu for emu in self.makes if endpoint in emu.endpoints and (endpoint, emu.unit) not in self.standing
            ),
            frees=tuple(site for site in self.frees if site.endpoint == endpoint),
            handovers=tuple(move for move in self.handovers if move.target.endpoint == endpoint),
            copies=tuple(move for move in self.copies if move.target.endpoint == endpoint),
            exchanges=tuple(x for x in (exchange_seen_by(x, endpoint) for x in self.exchanges) if x is not None),
        )

    def of_tensors(self, refs: Iterable[TensorRef]) -> Op:
        """The part of the operation that moves some tensors."""
        chosen = frozenset(refs)
        return replace(
            self,
            handovers=tuple(m for move in self.handovers if (m := of_tensors(move, chosen))),
            copies=tuple(m for move in self.copies if (m := of_tensors(move, chosen))),
            exchanges=tuple(x for exchange in self.exchanges if (x := exchange.of_tensors(chosen))),
        )


@dataclass(frozen=True, slots=True)
class Program:
    """All that one endpoint needs to know before a transition, so that installing it moves nothing."""

    epoch: int
    endpoint: EndpointId
    groups: tuple[GroupKey, ...]
    """Communicators to have ready, in one order that is the same everywhere (so that making them cannot deadlock)."""
    ops: tuple[Op, ...]
    states: dict[str, StateSpec] = field(default_factory=dict)
    """The logical state of every stage that the program opens units of."""
    timeout_s: float = MIN_TIMEOUT_S
    """Seconds after which a message or collective of its operations fails: its peer will not come."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The transition DAG from one collection of EMUs to another."""

    ops: tuple[Op, ...]
    """In dispatch order, which is topological."""
    result: tuple[Emu, ...]
    """The EMUs of the changed model-stages after it."""
    found: Found = Found.GREEDY
    """How its order was found."""

    @property
    def moving(self) -> tuple[Op, ...]:
        """What runs before the proof, in the order of submission on every endpoint's transfer lane."""
        held = {op.id for op in self.held}
        return tuple(op for op in self.ops if op.id not in held)

    @property
    def held(self) -> tuple[Op, ...]:
        """Destroys that nothing waits for: they run after the proof, so that until then the old units stand."""
        awaited = {before for op in self.ops for before in op.after}
        return tuple(op for op in self.ops if op.is_release and op.id not in awaited)

    @property
    def num_bytes(self) -> int:
        return sum(op.num_bytes for op in self.ops)

    @property
    def counts(self) -> dict[str, int]:
        """How many of each primitive."""
        return dict(Counter(primitive for op in self.ops for primitive in op.primitives))


def program_for(
    endpoint: EndpointId,
    epoch: int,
    ops: Iterable[Op],
    compute_groups: Iterable[GroupKey],
    states: Mapping[str, StateSpec],
    timeout_s: float = MIN_TIMEOUT_S,
) -> Program:
    """What one endpoint has to install: its part of the ops, and every communicator that they or its units use."""
    mine = tuple(op.seen_by(endpoint) for op in ops if endpoint in op.members)
    groups = {key for op in mine for key in op.groups}
    groups |= {key for key in compute_groups if endpoint in key.members}
    opened = {op.stage for op in mine if op.makes}
    return Program(
        epoch, endpoint, tuple(sorted(groups)), mine, {stage: states[stage] for stage in sorted(opened)}, timeout_s
    )
