"""What a table holds after a write that failed: all of what was written together, or nothing of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereus.runtime.tables import Table

SCHEMA = """
create table if not exists rows (
    id integer primary key, after integer references rows (id) deferrable initially deferred
)
"""
"""A row that comes after none that there is is refused, and not before the commit: as by a disk that is full only then."""


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path / "rows.sqlite", SCHEMA, synchronous="full")
    made.open()
    made.sql.execute("pragma foreign_keys = on")
    yield made
    made.close()


def rows(table: Table) -> list[int]:
    return [number for (number,) in table.sql.execute("select id from rows order by id")]


def test_commit_that_fails_leaves_the_table_as_it_was_and_open_to_the_next(table: Table) -> None:
    with table.whole() as sql:
        sql.execute("insert into rows values (1, null)")
    with pytest.raises(sqlite3.IntegrityError), table.whole() as sql:
        sql.executemany("insert into rows values (?, ?)", [(2, 1), (3, 17)])
    assert rows(table) == [1]
    with table.whole() as sql:
        sql.execute("insert into rows values (2, 1)")
    assert rows(table) == [1, 2]


def test_write_that_fails_half_way_takes_back_what_it_wrote(table: Table) -> None:
    with pytest.raises(sqlite3.IntegrityError), table.whole() as sql:
        sql.executemany("insert into rows values (?, ?)", [(1, None), ("no number", None)])
    assert rows(table) == []
    assert not table.sql.in_transaction
