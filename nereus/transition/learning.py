"""What transitions have taken, and the rates that this teaches: the next estimate is made with them.

    a committed transition -> its set-up and its movement as counts (members, operations, bytes by link), and seconds
                           -> robust fit on the last ones -> LinkRates         (the fit of all efficiencies, cost/fit.py)

Nothing is learnt of what did not occur: its rate stays the declared one, but for what all have in common. The chain of
operations that decided is taken as estimated; which it is can change with the rates, and the next fit sees that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from nereus.cost.fit import Vector, fit
from nereus.layout.catalog import EndpointId
from nereus.layout.moves import NodeOf
from nereus.transition.collectives import GroupKey
from nereus.transition.estimate import (
    Estimate,
    LinkRates,
    estimated,
    host_bytes,
    loads_of,
    most_members,
    num_buckets,
)
from nereus.transition.lanes import CLOSE
from nereus.transition.ops import Op, Transition

WINDOW = 24
"""Transitions that are remembered: as many as runs of a model-stage."""

RECENCY = 0.85
"""Weight of a transition relative to the next one: five new ones outweigh all before, so a link that got slow is seen."""

SPREAD = 0.7
"""Of the log of each rate apart: within a factor of two of the others, two times out of three, before it was measured."""

COMMON = 0.6
"""Of the log of what all rates have in common: declared ones are conservative, so that all are wrong the same way first."""

NOISE = 0.15
"""Relative error of a stretch that is taken at face value. On a machine with other work, equal ones differ by a third and
more; with the 0.05 of model-stages, the first disturbed one would set rates that three others are needed to correct."""

LEAST_S = 1e-3
"""Seconds of a part below which only the clock is measured."""


class Part(StrEnum):
    """What the seconds of a transition are made of, by the field of `LinkRates` that prices it."""

    BASE = "base_s"
    GROUP = "group_s"
    OP = "op_s"
    RELEASE = "release_s"
    BUCKET = "bucket_s"
    COPY = "copy_bytes_s"
    NEAR = "near_bytes_s"
    WIRE = "wire_bytes_s"
    UPLINK = "uplink_bytes_s"
    HOST = "host_bytes_s"
    HOST_COPY = "host_copy_bytes_s"

    @property
    def is_rate(self) -> bool:
        """Whether the field is units per second; else seconds per unit."""
        return self.value.endswith("bytes_s")


Counts = tuple[float, ...]
"""How much of each part, in the order of `Part`."""


class Seen(NamedTuple):
    """A stretch of a transition that was measured: the longest of some sums, in seconds."""

    rows: tuple[Counts, ...]
    seconds: float
    share: float
    """Of the whole transition; its root weighs it: a short stretch may be wrong, the whole should not be."""


@dataclass(frozen=True, slots=True)
class LearntLinks:
    """The rates that were declared, the last transitions, and the rates that fit both."""

    prior: LinkRates
    rates: LinkRates
    seen: tuple[tuple[Seen, ...], ...] = ()
    """By transition, oldest first."""

    @classmethod
    def nothing(cls, prior: LinkRates) -> LearntLinks:
        """Before the first transition."""
        return cls(prior, prior)

    def learn(self, stretches: Sequence[Seen]) -> LearntLinks:
        """After one more transition."""
        seen = (*self.seen, tuple(stretches))[-WINDOW:]
        return LearntLinks(self.prior, _fitted(self.prior, seen), seen)


def stretches(
    transition: Transition,
    groups: Mapping[EndpointId, tuple[GroupKey, ...]],
    rates: LinkRates,
    node_of: NodeOf,
    measured: tuple[float, float],
) -> tuple[Seen, ...]:
    """What was measured of a transition; `measured` are the seconds of set-up with the commit, and of its operations."""
    total = max(sum(measured), LEAST_S)
    around, moving = (max(seconds, LEAST_S) for seconds in measured)
    found = [Seen((_counts({Part.BASE: 1.0, Part.GROUP: float(most_members(groups))}),), around, around / total)]
    ops = (*transition.moving, *transition.held)
    if ops:
        chain = _chain(ops, estimated(transition, groups, rates, node_of), rates, node_of)
        rows = [chain]
        sent, copied = host_bytes(ops)
        if rates.host_bytes_s and (sent or copied):
            rows.append(_counts({Part.OP: 1.0, Part.HOST: sent, Part.HOST_COPY: copied}))
        found.append(Seen(tuple(rows), moving, moving / total))
    return tuple(found)


def as_json(rates: LinkRates) -> dict[str, Any]:
    """Plain data to save: the rates by field; what has none is left out."""
    return {part.value: value for part in Part if (value := getattr(rates, part.value)) is not None}


def _counts(by_part: Mapping[Part, float]) -> Counts:
    return tuple(by_part.get(part, 0.0) for part in Part)


def _chain(ops: Sequence[Op], estimate: Estimate, rates: LinkRates, node_of: NodeOf) -> Counts:
    """What the operations of the longest chain take, each at its busiest endpoint or uplink."""
    total = np.zeros(len(Part))
    for index in _longest(estimate):
        op = ops[index]
        loads, uplinks = loads_of(op, rates, node_of)
        busiest = max(loads.values(), key=lambda load: load.seconds(rates), default=None)
        fixed = Part.RELEASE if op.is_release and rates.release_s is not None else Part.OP
        counts = {fixed: 1.0, Part.BUCKET: float(num_buckets(op))}
        uplink = max(uplinks.values(), default=0.0)
        if busiest and (not rates.uplink_bytes_s or busiest.seconds(rates) >= uplink / rates.uplink_bytes_s):
            counts |= {Part.COPY: busiest.copied, Part.NEAR: busiest.near, Part.WIRE: busiest.wire}
        elif uplink:
            counts[Part.UPLINK] = uplink
        total += _counts(counts)
    return tuple(float(value) for value in total)


def _longest(estimate: Estimate) -> list[int]:
    """The operations that decide when the last one ends: each begins when the one before it in the list ends."""
    tasks, starts = estimate.tasks, estimate.schedule.starts
    ends = [start + task.seconds for start, task in zip(starts, tasks, strict=True)]
    index = max(range(len(tasks)), key=ends.__getitem__)
    found = [index]
    while starts[index] > CLOSE:
        task = tasks[index]
        before = [
            other
            for other in range(len(tasks))
            if abs(ends[other] - starts[index]) <= CLOSE
            and (
                other in task.after
                or not set(task.members).isdisjoint(tasks[other].members)
                or task.uplinks.keys() & tasks[other].uplinks.keys()
            )
        ]
        if not before:
            break
        index = max(before, key=lambda other: tasks[other].seconds)
        found.append(index)
    return found


def _fitted(prior: LinkRates, seen: Sequence[tuple[Seen, ...]]) -> LinkRates:
    """The rates that meet what was seen, held to the declared ones where little was."""
    parts = [part for part in Part if getattr(prior, part.value)]
    columns = [list(Part).index(part) for part in parts]
    stretches = [one for transition in seen for one in transition]
    weights = [
        RECENCY ** (len(seen) - 1 - age) * one.share**0.5 for age, transition in enumerate(seen) for one in transition
    ]
    rows = np.array([row for one in stretches for row in one.rows])[:, columns]
    first = np.cumsum([0, *(len(one.rows) for one in stretches[:-1])])

    def predict(prices: Vector) -> Vector:
        found: Vector = np.maximum.reduceat(rows @ prices, first)
        return found

    declared = np.array([_price(part, getattr(prior, part.value)) for part in parts])
    found = fit(
        predict,
        np.array([one.seconds for one in stretches]),
        np.log(declared),
        np.full(len(parts), SPREAD),
        weights=np.array(weights),
        common=np.full(len(parts), COMMON),
        noise=NOISE,
    )
    values = {part.value: _price(part, float(price)) for part, price in zip(parts, np.exp(found.log), strict=True)}
    return replace(prior, **values)


def _price(part: Part, value: float) -> float:
    """Seconds per unit from the field's value, and back."""
    return 1.0 / value if part.is_rate else value
