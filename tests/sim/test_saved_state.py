"""A simulated job whose controller saves: when the pool is gone, it goes on from its checkpoint, and the time is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.control.checkpoint import Restored, Saved
from nereus.sim.adaptive import Adaptive
from nereus.sim.outcome import Cause, Outcome
from nereus.spec.policy import CheckpointRule
from tests.sim.tiny import inputs

GAP = ((0.0, 4), (100.0, 0), (200.0, 4), (400.0, 4))
"""Nobody is there for a hundred seconds."""


def run(every: int | None, notice_s: float) -> tuple[Outcome, list[Saved | Restored]]:
    scenario = inputs(GAP, notice_s=notice_s).scenario()
    job = Adaptive(replace(scenario, checkpoint=CheckpointRule(every_steps=every)))
    return job.run(), job.ledger.checkpoints


@pytest.mark.parametrize(("every", "notice_s"), [(None, 30.0), (5, 0.0)])
def test_job_goes_on_after_a_time_without_devices(every: int | None, notice_s: float) -> None:
    outcome, news = run(every, notice_s)
    assert outcome.duration_s == 400.0
    assert sum(outcome.spent_s.values()) == pytest.approx(400.0, abs=1e-6)
    (restored,) = [event for event in news if isinstance(event, Restored)]
    saved = [event for event in news if isinstance(event, Saved)]
    assert restored.step in {event.step for event in saved}
    assert restored.repeated_steps < (every or 1)
    assert outcome.spent_s[Cause.RESTART] >= 100.0
    assert outcome.steps > restored.step
    assert outcome.response_tokens == pytest.approx(outcome.steps * 64 * 8 * 2048)


def test_saving_takes_as_long_as_the_largest_share_takes_to_the_disk() -> None:
    _, news = run(5, 0.0)
    speeds = inputs().scenario().speeds
    saved = [event for event in news if isinstance(event, Saved)]
    assert len(saved) > 2
    for event in saved:
        assert event.seconds >= event.num_bytes / 4 / speeds.disk_bytes_s
        assert event.seconds <= event.num_bytes / speeds.disk_bytes_s + 3 * speeds.op_s
