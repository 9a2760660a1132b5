"""The journal: every event before it is acted on, in one SQLite file (WAL). Replaying it gives the same state and effects.

seq | at_s | kind | body (JSON) | effects (a hash of what the core asked for)
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from nereus.control.effects import Effect
from nereus.control.events import Event

SCHEMA = """
create table if not exists events (
  seq integer primary key, at_s real not null, kind text not null, body text not null, effects text
)
"""


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
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open or make the file."""
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=normal")
        self._connection.execute(SCHEMA)

    def append(self, at_s: float, event: Event) -> int:
        """Write an event; returns its sequence number, from 1 on."""
        kind = type(event).__name__
        body = _adapter(kind).dump_json(event).decode()
        cursor = self._sql.execute("insert into events (at_s, kind, body) values (?, ?, ?)", (at_s, kind, body))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def acted(self, seq: int, effects: tuple[Effect, ...]) -> None:
        """Note what the core asked for."""
        self._sql.execute("update events set effects = ? where seq = ?", (effects_hash(effects), seq))

    def entries(self) -> Iterator[Entry]:
        """All rows in order."""
        for seq, at_s, kind, body, effects in self._sql.execute("select * from events order by seq"):
            yield Entry(seq, at_s, _adapter(kind).validate_json(body), effects)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _sql(self) -> sqlite3.Connection:
        assert self._connection is not None, "the journal is not open"
        return self._connection


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


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    types = {event.__name__: event for event in get_args(Event)}
    return TypeAdapter(types[kind])
