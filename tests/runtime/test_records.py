"""The controller's record on disk: what is written is there again, in order, all of a look or none of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import get_args

import pytest

from nereus.policy.grants import (
    Ended,
    Freed,
    Granted,
    Grants,
    Launched,
    NodesSeen,
    Priced,
    Record,
    Submitted,
    Withdrawn,
    after,
)
from nereus.policy.seating import Node, PoolDevice, Shape
from nereus.runtime.records import Records

NODE = Node(id="a", devices=4, is_leaving=True, gone_s=12.5)

STORY: tuple[Record, ...] = (
    NodesSeen(resource="GPU", nodes=(NODE, Node(id="b", devices=2))),
    Submitted(
        id="1",
        job="one",
        resource="GPU",
        shape=Shape(2, 2, True),
        needed=(0, 1),
        wanted=(0, 1, 2, 3),
        is_live=True,
        seconds={2: 1.5, 4: 0.75},
        stamp="20260101-000000",
        body='{"job": {}}',
    ),
    Granted(job="one", seats={0: PoolDevice("b", 0), 1: PoolDevice("b", 1)}),
    Launched(job="one"),
    Priced(job="one", seconds={2: 1.25}),
    Withdrawn(job="one", places=(1,)),
    Freed(job="one", places=(1,)),
    Ended(job="one", state="failed", reason="it said so"),
)


FULL = "pragma max_page_count = 1"
"""As on a full disk: the file gets no page more than it has."""


def opened(path: Path) -> Records:
    records = Records(path)
    records.open()
    return records


def test_every_kind_of_record_comes_back_as_it_was(tmp_path: Path) -> None:
    assert {type(record) for record in STORY} == set(get_args(Record))
    records = opened(tmp_path / "grants.sqlite")
    assert records.append(1.0, STORY[:3]) == 3
    assert records.append(2.0, STORY[3:]) == len(STORY)
    records.close()
    again = opened(tmp_path / "grants.sqlite")
    found = again.all()
    again.close()
    assert [record for _, record in found] == list(STORY)
    assert [at_s for at_s, _ in found] == [1.0] * 3 + [2.0] * (len(STORY) - 3)
    assert after(Grants(), (record for _, record in found)) == after(Grants(), STORY)


def test_records_of_one_look_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    records = opened(tmp_path / "grants.sqlite")
    with pytest.raises(sqlite3.IntegrityError):
        records.append(None, STORY[:2])  # type: ignore[arg-type]
    assert records.append(3.0, STORY[:1]) == 1, "and the next look writes on"
    records.close()
    again = opened(tmp_path / "grants.sqlite")
    assert again.all() == [(3.0, STORY[0])]
    again.close()


def test_records_that_find_the_disk_full_are_not_there_and_the_next_look_writes_on(tmp_path: Path) -> None:
    records = opened(tmp_path / "grants.sqlite")
    assert records.append(1.0, STORY[:2]) == 2
    (most,) = records._table.sql.execute("pragma max_page_count").fetchone()
    records._table.sql.execute(FULL)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        records.append(2.0, STORY[2:] * 200)
    assert [record for _, record in records.all()] == list(STORY[:2])
    records._table.sql.execute(f"pragma max_page_count = {most}")
    assert records.append(3.0, STORY[2:]) == len(STORY), "no number is skipped"
    records.close()
    again = opened(tmp_path / "grants.sqlite")
    assert [record for _, record in again.all()] == list(STORY)
    again.close()
