"""Append-only SQLite tables (WAL): what the journal and the controller's records have in common.

path, schema -> Table: connection, all-or-nothing writes          union of dataclasses -> Kinds: kind, body (JSON) <-> value
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter


class Table:
    """One file, which one thread at a time uses."""

    def __init__(self, path: Path, schema: str, synchronous: Literal["normal", "full"]) -> None:
        """With `full`, what is written survives a loss of power; with `normal`, the death of the process."""
        self._path, self._schema, self._synchronous = path, schema, synchronous
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open or make the file."""
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute(f"pragma synchronous={self._synchronous}")
        self._connection.execute(self._schema)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def sql(self) -> sqlite3.Connection:
        assert self._connection is not None, f"{self._path.name} is not open"
        return self._connection

    @contextmanager
    def whole(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or none of it: also where the commit itself fails, as on a full disk."""
        self.sql.execute("begin")
        try:
            yield self.sql
            self.sql.execute("commit")
        except BaseException:
            if self.sql.in_transaction:
                self.sql.execute("rollback")
            raise


class Kinds:
    """Values of a union of dataclasses as rows: the name of the class, and its fields as JSON."""

    def __init__(self, union: Any) -> None:
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._types = {kind.__name__: kind for kind in get_args(union)}

    def dump(self, value: object) -> tuple[str, str]:
        """The kind and the body of a value."""
        kind = type(value).__name__
        return kind, self._adapter(kind).dump_json(value).decode()

    def load(self, kind: str, body: str) -> Any:
        """The value of a row."""
        return self._adapter(kind).validate_json(body)

    def _adapter(self, kind: str) -> TypeAdapter[Any]:
        """Built when it is first needed: a run sees a part of all kinds."""
        if kind not in self._adapters:
            self._adapters[kind] = TypeAdapter(self._types[kind])
        return self._adapters[kind]
