"""Replays a journal: the same events give the same state and the same effects, or the difference is named."""

from __future__ import annotations

from dataclasses import dataclass

from nereus.control.core import step
from nereus.control.effects import Decision, Publish
from nereus.control.state import JobState
from nereus.runtime.journal import Journal, effects_hash


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to."""

    state: JobState
    num_events: int
    decisions: tuple[Decision, ...]
    first_difference: int | None
    """Sequence number of the first event whose effects are not those of the run; None when all are."""


def replay(journal: Journal, initial: JobState) -> Replayed:
    """Step through all events of a journal from the initial state of its job."""
    state, count, decisions, difference = initial, 0, list[Decision](), None
    for entry in journal.entries():
        state, effects = step(state, entry.event, entry.at_s)
        count += 1
        decisions += [e.news for e in effects if isinstance(e, Publish) and isinstance(e.news, Decision)]
        if difference is None and entry.effects is not None and entry.effects != effects_hash(effects):
            difference = entry.seq
    return Replayed(state, count, tuple(decisions), difference)
