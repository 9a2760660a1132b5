"""The ways to carry out the same change: other primitives for the same target, where the first choice waits in a circle.

    as it is -> unfused -> relays -> by way of a third place -> two stages on one device for a moment, while all stand still

What comes later costs more or departs further from the paper, so each is tried only where all before it have no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

from nereus.emu.primitives import Endpoints
from nereus.transition.local import LocalDag, Relay
from nereus.transition.ownership import Edges, Key, Movements
from nereus.transition.verdicts import Found

MAX_RELAYS = 9
"""Relays of one model-stage that are tried: three survivors and three places for the first copy."""

MAX_WAYS = 100
"""Combinations of relays that are tried for the stages of a circle, each at the cost of making their local DAGs."""


@dataclass(frozen=True, slots=True)
class Way:
    """One choice of primitives."""

    found: Found = Found.GREEDY
    unfused: frozenset[str] = frozenset()
    """Model-stages of which every primitive moves on its own."""
    relays: Mapping[str, Relay] = field(default_factory=dict)
    sharing: frozenset[frozenset[str]] = frozenset()
    """Pairs of exclusive model-stages that may own a device together, since both stand still."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The movements of a way, and what they wait for."""

    way: Way
    dags: Mapping[str, LocalDag]
    planned: Movements
    after: Edges
    circle: Sequence[Key]
    """Empty where there is an order."""

    @property
    def stuck(self) -> list[str]:
        """The model-stages of the circle."""
        return sorted({stage for stage, _ in self.circle})


Drafter = Callable[[Way], Draft]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a relay is chosen by."""

    owned: Callable[[str, Endpoints], int]
    """How many of these endpoints model-stages that exclude a stage own now."""
    wanted: Callable[[str, Endpoints], int]
    """How many they own in their targets."""
    spare: Callable[[str, int], Sequence[Endpoints]]
    """Endpoints, so many together, that no model-stage owns that excludes a stage, now or in its target."""
    quiesced: bool
    """Whether all model-stages stand still, as at a synchronous boundary."""


def drafts(first: Draft, draft: Drafter, around: Surroundings) -> Iterator[Draft]:
    """The drafts that have an order, best first. `first` is that of the first choice."""
    at = first
    while at.circle and (fused := set(at.stuck) - at.way.unfused):
        at = draft(replace(at.way, found=Found.RE_CHOSEN, unfused=at.way.unfused | fused))
    if not at.circle:
        yield at
    if not first.circle:
        return
    yield from (found for found in _relayed(at, draft, around) if not found.circle)
    yield from (found for found in _by_a_third_place(at, draft, around) if not found.circle)
    if around.quiesced:
        yield _shared(first, draft)


def _relayed(at: Draft, draft: Drafter, around: Surroundings) -> Iterator[Draft]:
    """The stages of the circle with one survivor each that is copied once."""
    choices: list[list[Relay | None]] = []
    for stage in at.stuck:
        dag = at.dags[stage]
        relays = [Relay(a, b) for a in _least(dag.sources, stage, around.wanted) for b in dag.slots if not set(a) & set(b)]
        relays.sort(key=lambda relay, stage=stage: around.owned(stage, relay.first))  # type: ignore[misc]
        choices.append([*relays[:MAX_RELAYS], None])
    for chosen in islice(product(*choices), MAX_WAYS):
        relays_of = {stage: relay for stage, relay in zip(at.stuck, chosen, strict=True) if relay is not None}
        if relays_of:
            yield draft(replace(at.way, found=Found.RE_CHOSEN, relays=relays_of))


def _by_a_third_place(at: Draft, draft: Drafter, around: Surroundings) -> Iterator[Draft]:
    """One stage of the circle by way of devices that neither plan gives it, so that it leaves its own at once."""
    for stage in at.stuck:
        dag = at.dags[stage]
        if not dag.sources:
            continue
        unfused = at.way.unfused | {stage}
        for place in around.spare(stage, len(dag.sources[0])):
            for survivor in _least(dag.sources, stage, around.wanted):
                relays = {stage: Relay(survivor, place)}
                yield draft(replace(at.way, found=Found.DETOUR, unfused=unfused, relays=relays))


def _shared(first: Draft, draft: Drafter) -> Draft:
    """The first choice, with the pairs of stages in its circles on common devices for a moment."""
    at = first
    while at.circle:
        stages = [stage for stage, _ in at.circle]
        pairs = {frozenset(pair) for pair in zip(stages, (*stages[1:], stages[0]), strict=True) if len(set(pair)) == 2}
        at = draft(replace(at.way, found=Found.DETOUR, sharing=at.way.sharing | pairs))
    return at


def _least(sources: Sequence[Endpoints], stage: str, count: Callable[[str, Endpoints], int]) -> list[Endpoints]:
    """The three units on whose endpoints fewest others wait."""
    return sorted(sources, key=lambda endpoints: count(stage, endpoints))[:3]
