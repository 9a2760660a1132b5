"""The controller's own record: who was given which device, in one SQLite file (WAL). Written before it is acted on.

seq | at_s | kind | body (JSON)          Records.open -> all() -> nereus.policy.grants.after -> Grants
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from nereus.policy.grants import Record

SCHEMA = """
create table if not exists records (seq integer primary key, at_s real not null, kind text not null, body text not null)
"""


class Records:
    """An append-only table of records. One thread writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open or make the file."""
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode=wal")
        # A device that was granted is granted, also after the machine has lost its power.
        self._connection.execute("pragma synchronous=full")
        self._connection.execute(SCHEMA)

    def append(self, at_s: float, records: Iterable[Record]) -> int:
        """Write records, all of them or none; returns the number of the last one that there is, 0 for none."""
        rows = [(at_s, type(one).__name__, _adapter(type(one).__name__).dump_json(one).decode()) for one in records]
        self._sql.execute("begin")
        try:
            self._sql.executemany("insert into records (at_s, kind, body) values (?, ?, ?)", rows)
        except sqlite3.Error:
            self._sql.execute("rollback")
            raise
        self._sql.execute("commit")
        (last,) = self._sql.execute("select coalesce(max(seq), 0) from records").fetchone()
        return int(last)

    def all(self) -> list[tuple[float, Record]]:
        """All of them in order, with their times."""
        rows = self._sql.execute("select at_s, kind, body from records order by seq")
        return [(at_s, _adapter(kind).validate_json(body)) for at_s, kind, body in rows]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _sql(self) -> sqlite3.Connection:
        assert self._connection is not None, "the records are not open"
        return self._connection


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    types = {record.__name__: record for record in get_args(Record)}
    return TypeAdapter(types[kind])
