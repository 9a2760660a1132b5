"""Who comes to rest for a transition: the EMUs that it changes, and nobody else.

Paper, section 4.1: "Affected EMUs first complete in-flight accesses, collectives, and optimizer updates."
"""

from __future__ import annotations

import pytest

from nereus.control.carrying import QUIESCE_DEADLINE_S
from nereus.control.effects import (
    AbortOps,
    BindUnits,
    InstallPrograms,
    Interrupted,
    Publish,
    QuiesceUnits,
    RunOp,
    TakeDigests,
)
from nereus.control.events import OpFailed, Quiesced
from nereus.spec.stages import ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.transition.collectives import TRANSFER
from tests.control.harness import Core, endpoints
from tests.runtime.loop import choice, scripted_config

SPLIT = {"step": 1, "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}}
"""Training is cut otherwise on its devices; the reference on 4 and 5 has no part in it."""

OTHERS = {"d4.0", "d5.0"}


def at_boundary() -> Core:
    core = Core(scripted_config(SPLIT)).start(range(6))
    core.effects.clear()
    core.boundary()
    return core


def test_only_the_units_that_change_are_asked_to_come_to_rest() -> None:
    core = at_boundary()
    (asked,) = core.asked(QuiesceUnits)
    assert isinstance(asked, QuiesceUnits)
    assert asked.emus == core.state.emus[ACTOR_TRAINING]
    assert set(endpoints(asked.emus)) == {"d0.0", "d1.0", "d2.0", "d3.0"}
    assert (asked.epoch, asked.deadline_s) == (1, QUIESCE_DEADLINE_S)


def test_nothing_is_touched_before_the_last_of_them_has() -> None:
    core = at_boundary()
    quiet = [fact for fact in core.pending if isinstance(fact, Quiesced)]
    assert len(quiet) == 4
    for fact in quiet:
        assert not core.asked(TakeDigests)
        core.pending.remove(fact)
        core.post(fact)
    assert len(core.asked(TakeDigests)) == 1


def test_other_units_are_neither_hashed_nor_waited_for_nor_in_a_collective_of_the_transition() -> None:
    """They get the communicators and the weight sync of the next epoch, and learn of it at the commit: no more."""
    core = at_boundary()
    core.settle()
    assert not any(OTHERS & set(endpoints(effect.emus)) for effect in core.asked(TakeDigests))  # type: ignore[union-attr]
    assert not any(OTHERS & set(effect.op.members) for effect in core.asked(RunOp))  # type: ignore[union-attr]
    (installed,) = core.asked(InstallPrograms)
    assert isinstance(installed, InstallPrograms)
    theirs = [program for program in installed.programs if program.endpoint in OTHERS]
    assert len(theirs) == 2
    for program in theirs:
        assert all(op.is_repeatable for op in program.ops)
        assert not any(key.lane == TRANSFER for key in program.groups)


def test_other_units_are_the_same_before_and_after() -> None:
    core = at_boundary()
    before = core.state.emus[REFERENCE_INFERENCE]
    core.settle()
    assert core.state.plan.epoch == 1
    assert core.state.emus[REFERENCE_INFERENCE] == before
    (bound,) = core.asked(BindUnits)
    assert isinstance(bound, BindUnits)
    assert set(before) <= set(bound.emus)


@pytest.mark.parametrize("number", range(4))
def test_one_that_does_not_come_to_rest_in_time_ends_the_transition_and_the_job_goes_on(number: int) -> None:
    core = at_boundary()
    emus, released = dict(core.state.emus), core.releases
    late = core.pending.pop(number)
    assert isinstance(late, Quiesced)
    core.post(OpFailed(endpoint=late.endpoint, op="quiesce e1", error="it has not answered within 120 s"))
    assert core.asked(AbortOps)
    assert not core.asked(RunOp)
    core.settle()
    (ended,) = [e.news for e in core.effects if isinstance(e, Publish) and isinstance(e.news, Interrupted)]
    assert ended.end == "rolled back"
    assert "quiesce e1 failed" in ended.reason
    assert core.state.emus == emus
    assert core.releases == released + 1


def test_answer_after_the_deadline_changes_nothing() -> None:
    core = at_boundary()
    late = core.pending.pop(0)
    assert isinstance(late, Quiesced)
    core.post(OpFailed(endpoint=late.endpoint, op="quiesce e1", error="late"))
    before = core.state
    assert core.post(late) == ()
    assert core.state == before
