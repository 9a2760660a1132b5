"""The journal: every event before it is acted on, in one SQLite file. Replaying it gives the same state and effects.

seq | at_s | kind | body (JSON) | effects (a hash of what the core asked for)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nereus.control.effects import Effect
from nereus.control.events import Event
from nereus.runtime.tables import Kinds, Table

SCHEMA = """
create table if not exists events (
  seq integer primary key, at_s real not null, kind text not null, body text not null, effects text
)
"""

KINDS = Kinds(Event)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row."""

    seq: int
    at_s: float
    event: Event
    effects: str | None
    """The hash of the effects, None when the controller died between journaling and acting."""


class Journal:
    """An append-only table of events. One thread writes."""

    def __init__(self, path: Path) -> None:
        self._table = Table(path, SCHEMA, synchronous="normal")

    def open(self) -> None:
        """Open or make the file."""
        self._table.open()

    def append(self, at_s: float, event: Event) -> int:
        """Write an event; returns its sequence number, from 1 on."""
        row = (at_s, *KINDS.dump(event))
        cursor = self._table.sql.execute("insert into events (at_s, kind, body) values (?, ?, ?)", row)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def acted(self, seq: int, effects: tuple[Effect, ...]) -> None:
        """Note what the core asked for."""
        self._table.sql.execute("update events set effects = ? where seq = ?", (effects_hash(effects), seq))

    def entries(self) -> Iterator[Entry]:
        """All rows in order."""
        for seq, at_s, kind, body, effects in self._table.sql.execute("select * from events order by seq"):
            yield Entry(seq, at_s, KINDS.load(kind, body), effects)

    def close(self) -> None:
        self._table.close()


def effects_hash(effects: tuple[Effect, ...]) -> str:
    """A hash of the effects' whole content, the same in every process."""
    return hashlib.sha256(repr([_canonical(effect) for effect in effects]).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Sets have no order of their own, so they are sorted by what they print as."""
    if isinstance(value, frozenset | set):
        return sorted((_canonical(item) for item in value), key=repr)
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_canonical(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        # What does not count in comparisons is remembered, not meant.
        return type(value).__name__, {f.name: _canonical(getattr(value, f.name)) for f in fields(value) if f.compare}
    return value
