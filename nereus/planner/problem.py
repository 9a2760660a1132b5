"""The plan search as numbers: holders with tables of candidates, a pool of nodes, and what happens when devices are shared.

    Holder (of a device set: one EMU collection)  --  Rows (its candidates, one column per quantity)
    Pool (nodes of one or more device kinds)      --  Edge (a weight sync between two holders)

A critic that scores and trains on the same EMUs is one holder with two roles; an actor's generation and training are two
holders joined by an edge. The search (Eq. (1)) sees only what is written here: it knows no models and no job files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nereus.errors import UserError

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

MOST_HOLDERS_PER_STAGE = 4
"""Up to four holders the critical path of a stage is its heaviest clique, exactly; the 5-cycle is the first that is not."""


class Stage(IntEnum):
    """The stages of an RL step, in order (paper, section 2)."""

    GENERATION = 0
    INFERENCE = 1
    TRAINING = 2


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The candidates of one holder as a table: one entry per candidate in every column."""

    seconds: Floats
    """(roles, rows). Latency of the slowest replica, DP synchronization included."""
    num_devices: Ints
    """tp * pp * dp."""
    resident_bytes: Floats
    """On each device, also while idle: parameters, optimizer shard, communicator buffers."""
    active_bytes: Floats
    """On each device on top while a role runs: gradients, activations, KV cache; the largest over the roles."""
    quantum: Ints
    """The devices used in each node are a multiple of it: tp keeps TP groups inside nodes, tp * pp whole EMUs."""
    kind: Ints
    """Device kind: an index into `Pool.capacity_bytes`."""
    layout: Ints
    """Layout class: with `num_devices` it says the shape (tp, pp, dp), and an edge prices pairs of it."""
    index: Ints
    """Of the row in the table that the holder came with."""
    host_bytes: Floats
    """For each device, in the memory of its node's host: what is offloaded; 0 without."""

    @classmethod
    def of(
        cls,
        seconds: npt.ArrayLike,
        num_devices: npt.ArrayLike,
        resident_bytes: npt.ArrayLike,
        active_bytes: npt.ArrayLike,
        quantum: npt.ArrayLike,
        layout: npt.ArrayLike,
        kind: npt.ArrayLike = 0,
        host_bytes: npt.ArrayLike = 0.0,
    ) -> Rows:
        """A table from columns; `seconds` is (roles, rows), or one row of it for a holder with one role."""
        latencies = np.atleast_2d(np.asarray(seconds, np.float64))
        count = latencies.shape[1]

        def whole(column: npt.ArrayLike) -> Ints:
            return np.ascontiguousarray(np.broadcast_to(np.asarray(column, np.int64), count))

        def real(column: npt.ArrayLike) -> Floats:
            return np.ascontiguousarray(np.broadcast_to(np.asarray(column, np.float64), count))

        return cls(
            np.ascontiguousarray(latencies),
            whole(num_devices),
            real(resident_bytes),
            real(active_bytes),
            whole(quantum),
            whole(kind),
            whole(layout),
            np.arange(count),
            real(host_bytes),
        )

    def __len__(self) -> int:
        return len(self.num_devices)

    def take(self, which: Ints | Bools) -> Rows:
        """Some of the rows, in the order given."""
        return Rows(
            self.seconds[:, which],
            self.num_devices[which],
            self.resident_bytes[which],
            self.active_bytes[which],
            self.quantum[which],
            self.kind[which],
            self.layout[which],
            self.index[which],
            self.host_bytes[which],
        )

    @property
    def shape(self) -> Ints:
        """One number per row, equal where layout and DP degree are."""
        return self.layout * (int(self.num_devices.max(initial=0)) + 1) + self.num_devices


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """Who has a device set, one EMU collection, and the stages in which it is active."""

    name: str
    stages: tuple[Stage, ...]
    """Of its roles, in the order of `rows.seconds`."""
    rows: Rows
    devices: tuple[int, ...] | None = None
    """Where a pinned holder lies, as numbers of devices; its rows then need as many, of that kind, in their quanta."""


@dataclass(frozen=True, slots=True)
class Node:
    """Devices of one kind between which the fast links run."""

    devices: tuple[int, ...]
    kind: int = 0
    host_bytes: float = 0.0
    """Of its host's memory, what all its devices together may offload to."""


@dataclass(frozen=True)
class Pool:
    """P_gpu: the nodes, and what a plan may fill on a device of each kind."""

    nodes: tuple[Node, ...]
    capacity_bytes: tuple[float, ...]
    """By kind, headroom already taken off."""

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        capacity_bytes: float | Sequence[float],
        kinds: Sequence[int] | None = None,
        host_bytes: Sequence[float] | None = None,
    ) -> Pool:
        """Nodes of these sizes, with devices numbered from 0 on."""
        ends = np.cumsum([0, *sizes])
        spans = [tuple(range(int(a), int(b))) for a, b in pairwise(ends)]
        hosts = host_bytes or [0.0] * len(sizes)
        nodes = tuple(Node(span, kinds[at] if kinds else 0, hosts[at]) for at, span in enumerate(spans))
        capacities = (capacity_bytes,) if isinstance(capacity_bytes, int | float) else tuple(capacity_bytes)
        return cls(nodes, capacities)

    @cached_property
    def num_devices(self) -> int:
        """Devices of all kinds."""
        return sum(len(node.devices) for node in self.nodes)

    @cached_property
    def devices_of_kind(self) -> Ints:
        """(kinds,) Devices of each kind."""
        return np.array([sum(size * count for size, count in sizes.items()) for sizes in self.sizes_of_kind], np.int64)

    @cached_property
    def largest_node(self) -> Ints:
        """(kinds,) Devices of the largest node of each kind."""
        return np.array([max(sizes, default=0) for sizes in self.sizes_of_kind], np.int64)

    @cached_property
    def sizes_of_kind(self) -> tuple[Mapping[int, int], ...]:
        """For each kind, how many nodes there are of each size."""
        sizes: list[Counter[int]] = [Counter() for _ in self.capacity_bytes]
        for node in self.nodes:
            sizes[node.kind][len(node.devices)] += 1
        return tuple(dict(sorted(counts.items())) for counts in sizes)

    @cached_property
    def classes_of_kind(self) -> tuple[Mapping[tuple[int, float], int], ...]:
        """For each kind, how many nodes there are of each number of devices and bytes of the host."""
        classes: list[Counter[tuple[int, float]]] = [Counter() for _ in self.capacity_bytes]
        for node in self.nodes:
            classes[node.kind][len(node.devices), node.host_bytes] += 1
        return tuple(dict(sorted(counts.items())) for counts in classes)

    @cached_property
    def host_of_kind(self) -> Floats:
        """(kinds,) Bytes of all hosts of each kind."""
        return np.array([sum(host * nodes for (_, host), nodes in c.items()) for c in self.classes_of_kind], np.float64)

    @cached_property
    def total_bytes(self) -> float:
        """Of all devices."""
        return float(self.devices_of_kind @ np.asarray(self.capacity_bytes, np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A weight sync from one holder to another: seconds added to every step, by the layout classes of both."""

    source: int
    target: int
    """Numbers of holders."""
    seconds: Floats
    """(layout classes of the source, of the target)."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """What of a problem decides which holders may overlap."""

    stages: tuple[tuple[Stage, ...], ...]
    """Of every holder."""
    asynchronous: bool
    overlaps: bool


@dataclass(frozen=True, eq=False)
class Problem:
    """Eq. (1) with its numbers."""

    holders: tuple[Holder, ...]
    pool: Pool
    edges: tuple[Edge, ...] = ()
    asynchronous: bool = False
    """Generation runs beside the rest, on devices of its own; else one stage follows the other."""
    overlaps: bool = True
    """Holders of one stage on disjoint devices run at the same time; else a job runs them one after the other anyway."""
    stages: tuple[Stage, ...] = field(init=False)
    """In which some holder is active."""

    def __post_init__(self) -> None:
        stages = sorted({stage for holder in self.holders for stage in holder.stages})
        object.__setattr__(self, "stages", tuple(stages))
        for stage in stages if self.overlaps else ():
            names = [holder.name for holder in self.holders if stage in holder.stages]
            if len(names) > MOST_HOLDERS_PER_STAGE:
                raise UserError(
                    f"{stage.name.lower()}: {len(names)} model-stages ({', '.join(names)}) may run at the same time; the "
                    f"search orders at most {MOST_HOLDERS_PER_STAGE} exactly; put two on the same EMUs, or run them serially"
                )

    def active_in(self, stage: Stage) -> tuple[int, ...]:
        """The holders with a role in a stage."""
        return tuple(i for i, holder in enumerate(self.holders) if stage in holder.stages)

    def narrowed(self, rows: Sequence[Sequence[int]]) -> Problem:
        """The same with these rows of every holder; their indices stay."""
        kept = zip(self.holders, rows, strict=True)
        holders = tuple(replace(holder, rows=holder.rows.take(np.asarray(which, np.int64))) for holder, which in kept)
        return replace(self, holders=holders)

    @property
    def workflow(self) -> Workflow:
        """Its stages without its numbers."""
        return Workflow(tuple(holder.stages for holder in self.holders), self.asynchronous, self.overlaps)
