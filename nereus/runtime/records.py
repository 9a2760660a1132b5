"""The controller's own record: who was given which device, in one SQLite file. Written before it is acted on.

seq | at_s | kind | body (JSON)          Records.open -> all() -> nereus.policy.grants.after -> Grants
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nereus.policy.grants import Record
from nereus.runtime.tables import Kinds, Table

SCHEMA = """
create table if not exists records (seq integer primary key, at_s real not null, kind text not null, body text not null)
"""

KINDS = Kinds(Record)


class Records:
    """An append-only table of records. One thread at a time uses it."""

    def __init__(self, path: Path) -> None:
        # A device that was granted is granted, also after the machine has lost its power.
        self._table = Table(path, SCHEMA, synchronous="full")

    def open(self) -> None:
        """Open or make the file."""
        self._table.open()

    def append(self, at_s: float, records: Iterable[Record]) -> int:
        """Write records, all of them or none; returns the number of the last one that there is, 0 for none."""
        rows = [(at_s, *KINDS.dump(record)) for record in records]
        with self._table.whole() as sql:
            sql.executemany("insert into records (at_s, kind, body) values (?, ?, ?)", rows)
            (last,) = sql.execute("select coalesce(max(seq), 0) from records").fetchone()
        return int(last)

    def all(self) -> list[tuple[float, Record]]:
        """All of them in order, with their times."""
        rows = self._table.sql.execute("select at_s, kind, body from records order by seq")
        return [(at_s, KINDS.load(kind, body)) for at_s, kind, body in rows]

    def close(self) -> None:
        self._table.close()
