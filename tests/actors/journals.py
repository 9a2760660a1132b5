"""The journal of a run, read while the run goes on, and replayed after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from actors.head import JOURNAL_FILE
from nereus.control.effects import Decision
from nereus.control.events import Event
from nereus.control.state import JobState
from nereus.rl.describe import describe
from nereus.runtime.journal import Journal
from nereus.runtime.replay import Replayed, replay
from nereus.spec.job import Job
from tests.actors.jobs import Run


def kinds(folder: Path) -> list[str]:
    """The kinds of all events so far, in order."""
    return _column(folder, "kind")


def steps(folder: Path) -> list[int | None]:
    """For each event so far: the step that it reports, None if it is no report. A restarted head is told of one again."""
    return _column(folder, "json_extract(body, '$.report.step')")


def events(folder: Path) -> list[Event]:
    """All events of an ended run."""
    with closing(Journal(folder / JOURNAL_FILE)) as journal:
        journal.open()
        return [entry.event for entry in journal.entries()]


def timed(folder: Path) -> list[tuple[float, Event]]:
    """The same with their times."""
    with closing(Journal(folder / JOURNAL_FILE)) as journal:
        journal.open()
        return [(entry.at_s, entry.event) for entry in journal.entries()]


def replayed(job: Job, folder: Path) -> Replayed:
    """The journal of an ended run, stepped through again."""
    with closing(Journal(folder / JOURNAL_FILE)) as journal:
        journal.open()
        return replay(journal, JobState(config=describe(job)))


def assert_replays(run: Run) -> None:
    """Stepping through the journal again gives the decisions of the run, the effects of every event, and its last plan.

    A decision that falls after the last step is in the journal, and the run may have ended before it was told.
    """
    found = replayed(run.job, run.folder)
    assert found.first_difference is None
    assert found.num_events == len(kinds(run.folder))
    told = [news for news in run.events if isinstance(news, Decision)]
    late = found.decisions[len(told) :]
    assert _verdicts(found.decisions[: len(told)]) == _verdicts(told)
    assert {decision.step for decision in late} <= {run.job.steps}
    assert found.state.plan.epoch == len(run.transitions) + len(run.summary.restored)
    assert found.state.step == run.job.steps


def _verdicts(decisions: Sequence[Decision]) -> list[tuple[object, ...]]:
    return [(d.step, d.cycle, d.triggers, dict(d.target), d.verdict) for d in decisions]


def _column(folder: Path, column: str) -> list[Any]:
    """One column of all events so far; none before there is a journal."""
    path = folder / JOURNAL_FILE
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        try:
            return [value for (value,) in connection.execute(f"select {column} from events order by seq")]
        except sqlite3.OperationalError:
            return []
