"""A job under the controller on devices whose notice is shorter than its steps."""

from __future__ import annotations

from functools import lru_cache

from nereus.sim.adaptive import Adaptive
from nereus.sim.outcome import Cause, Outcome
from nereus.spec.outline import parse_outline
from tests.sim.tiny import OUTLINE, inputs

POINTS = ((0.0, 4), (400.0, 2), (4000.0, 2))
"""Two of four devices leave 400 s after the start."""

PROMPTS = 8192
"""Of eight responses each: a step of some minutes on four devices."""

NOTICE_S = 60.0


@lru_cache
def run(notice_s: float) -> Outcome:
    workload = {**OUTLINE["workload"], "prompts_per_step": PROMPTS}
    outline = parse_outline({**OUTLINE, "workload": workload})
    return Adaptive(inputs(POINTS, outline=outline, notice_s=notice_s, steps=6).scenario()).run()


def test_steps_are_longer_than_the_notice() -> None:
    found = run(NOTICE_S)
    assert found.spent_s[Cause.STEPS] / found.steps > NOTICE_S


def test_step_that_cannot_end_is_given_up_and_run_again_without_a_restart() -> None:
    found = run(NOTICE_S)
    assert found.steps == 6
    assert found.spent_s[Cause.REDONE] > 0
    assert [span for span in found.spans if span.cause is Cause.RESTART and span.begin_s > 0] == []
    (moved,) = [record for record in found.transitions if "leave" in record.trigger]
    assert {device for stage in moved.plan.stages.values() for device in stage.devices} <= {0, 1}


def test_step_is_given_up_before_the_devices_are_gone() -> None:
    redone = [span for span in run(NOTICE_S).spans if span.cause is Cause.REDONE]
    assert all(span.end_s <= 400.0 for span in redone)
    assert any(span.end_s >= 340.0 for span in redone)
