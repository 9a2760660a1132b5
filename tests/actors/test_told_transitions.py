"""What a real run tells of its transitions: who came to rest, and predicted and measured seconds side by side.

Only that the figures are there and belong together: how long anything takes is the benchmark's.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import pytest

from nereus.control.events import Quiesced
from tests.actors import journals
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, Run, make_job, run, stage

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Training goes to a second device and is cut in two there; reference and generation stay where they are."""
    folder: Path = tmp_path_factory.mktemp("told")
    job = make_job(
        TINY,
        name="told",
        steps=3,
        cluster={"nodes": 1, "devices_per_node": 4, "device": {"memory": "256MiB"}},
        plan={TRAINING: stage(1, 1, 1, "0", 4), REFERENCE: stage(1, 1, 1, "2", 4), GENERATION: stage(1, 1, 1, "3", 4)},
        transitions=[
            {"step": 1, "stages": {TRAINING: stage(1, 1, 2, "0-1", 4)}},
            {"step": 2, "stages": {TRAINING: stage(2, 1, 1, "0-1", 4)}},
        ],
    )
    return run(job, folder / "run")


def test_run_asks_only_the_endpoints_of_units_that_change_to_come_to_rest(found: Run) -> None:
    quiet = [event for event in journals.events(found.folder) if isinstance(event, Quiesced)]
    by_epoch = {epoch: {event.endpoint for event in quiet if event.epoch == epoch} for epoch in (1, 2)}
    assert by_epoch == {1: {"d0.0"}, 2: {"d0.0", "d1.0"}}
    assert len(quiet) == 3


def test_run_tells_what_was_predicted_and_taken_of_each_transition_and_each_operation(found: Run) -> None:
    transitions = found.summary.transitions
    assert [t["primitives"] for t in transitions] == [{"Extend": 1}, {"Merge": 1}]
    figures = [t[key] for t in transitions for key in ("l_tran_predicted_s", "seconds")]
    figures += [op[key] for t in transitions for op in t["ops"] for key in ("predicted_s", "seconds")]
    assert len(figures) == 8
    assert all(isfinite(figure) and figure > 0 for figure in figures)
    assert found.summary.l_tran_error["all"] is not None
    assert transitions[0]["rates"] != transitions[1]["rates"], "each teaches something"


def test_run_replays_to_the_same_rates(found: Run) -> None:
    journals.assert_replays(found)
    state = journals.replayed(found.job, found.folder).state
    assert state.moved is not None
    assert len(state.moved.seen) == 2
    told = found.summary.transitions[-1]["rates"]
    assert {name: getattr(state.links, name) for name in told} == told
