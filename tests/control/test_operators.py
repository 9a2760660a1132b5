"""What operators ask for: the loop held and let go, a transition ended, the plan before brought back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nereus.control.effects import AbortOps, Answered, Publish, QuiesceUnits, ReleaseBoundary, RunOp
from nereus.control.events import EndpointDied, OperatorAsked, PlanReady, PoolChanged, Verb
from nereus.control.intact import is_reversible
from nereus.control.phases import Admitted, Paused, Planning, Steady, Transitioning
from nereus.policy.admission import Code
from nereus.spec.stages import ACTOR_TRAINING
from tests.control.harness import Core, with_proposals
from tests.runtime.loop import adaptive_config, choice, scripted_config

SCRIPT = {"step": 2, "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}}
"""After the second step a Split."""


def ask(core: Core, verb: Verb, command: str = "x") -> Answered:
    """Ask, and what is answered."""
    core.post(OperatorAsked(command=command, verb=verb))
    (told,) = [e.news for e in core.effects if isinstance(e, Publish) and isinstance(e.news, Answered)][-1:]
    assert (told.command, told.verb) == (command, str(verb))
    return told


def steady(*script: dict[str, Any]) -> Core:
    core = Core(scripted_config(*script) if script else adaptive_config()).start(range(6 if script else 4))
    core.boundary()
    core.settle()
    return core


def admitted(core: Core) -> Core:
    """A plan waits for the next boundary."""
    core.boundary(12.0)
    (answer,) = core.pending
    core.pending.clear()
    assert isinstance(answer, PlanReady)
    core.post(with_proposals(answer, l_step_s=0.0, l_tran_s=0.0, infeasible=None))
    assert isinstance(core.state.phase, Admitted)
    return core


# --- pause and resume --------------------------------------------------------------------------------------------------


def test_pause_holds_the_loop_at_the_next_boundary_and_resume_lets_it_go() -> None:
    core = steady()
    assert ask(core, Verb.PAUSE).done
    assert isinstance(core.state.phase, Steady)
    before = core.releases
    assert core.boundary() == ()
    assert isinstance(core.state.phase, Paused)
    assert core.boundary(step_number=core.state.step) == (), "the loop asks again after a restart of the head"
    assert ask(core, Verb.RESUME).done
    assert core.releases == before + 1
    assert isinstance(core.state.phase, Steady)


def test_what_a_boundary_leads_to_comes_when_the_loop_is_let_go() -> None:
    core = steady(SCRIPT)
    ask(core, Verb.PAUSE)
    core.boundary()
    assert not core.asked(QuiesceUnits)
    ask(core, Verb.RESUME)
    assert isinstance(core.state.phase, Transitioning)
    core.settle()
    assert core.state.plan.epoch == 1


def test_plan_that_is_admitted_waits_with_the_loop() -> None:
    core = admitted(steady())
    ask(core, Verb.PAUSE)
    core.boundary(12.0)
    assert not core.asked(QuiesceUnits)
    ask(core, Verb.RESUME)
    assert isinstance(core.state.phase, Transitioning)


def test_units_that_are_lost_in_a_pause_are_recovered_from_and_the_loop_stays_held() -> None:
    core = steady()
    ask(core, Verb.PAUSE)
    core.boundary()
    before = core.releases
    core.post(EndpointDied(endpoint="d3.0", during="nothing"))
    assert isinstance(core.state.phase, Planning)
    core.settle()
    assert isinstance(core.state.phase, Paused)
    assert core.state.plan.epoch == 1
    assert 3 not in core.state.plan.devices
    assert core.releases == before
    ask(core, Verb.RESUME)
    assert core.releases == before + 1


@pytest.mark.parametrize(
    ("verb", "why"),
    [
        (Verb.RESUME, "the job is not paused"),
        (Verb.ABORT, "nothing is planned or on the move"),
        (Verb.ROLLBACK, "there was no transition yet, so there is no plan to go back to"),
    ],
)
def test_request_that_cannot_be_is_refused_with_the_reason_and_changes_nothing(verb: Verb, why: str) -> None:
    core = steady()
    before = core.state
    told = ask(core, verb)
    assert (told.done, told.reason) == (False, why)
    assert core.state == before


# --- abort -------------------------------------------------------------------------------------------------------------


def test_abort_drops_a_plan_that_is_admitted() -> None:
    core = admitted(steady())
    assert ask(core, Verb.ABORT).done
    assert isinstance(core.state.phase, Steady)
    core.boundary(12.0)
    assert not core.asked(QuiesceUnits)


def test_abort_of_a_replan_makes_its_answer_stale() -> None:
    core = steady()
    core.boundary(12.0)
    (answer,) = core.pending
    assert ask(core, Verb.ABORT).done
    before = core.state
    core.post(answer)
    assert core.state == before


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_transition_that_is_aborted_is_rolled_back_before_the_first_destroy_and_carried_to_its_plan_after_it(
    number: int,
) -> None:
    entry = {"step": 2, "stages": {ACTOR_TRAINING: choice(2, 1, 2, "0-1,4-5")}}
    core = steady(entry)
    stages = core.state.plan.stages
    core.boundary()
    for _ in range(number):
        if core.pending and isinstance(core.state.phase, Transitioning):
            core.post(core.pending.pop(0))
    moving = core.state.phase
    if not isinstance(moving, Transitioning):
        return
    reversible = is_reversible(moving.carrying)
    freed = any(effect.op.frees for effect in core.asked(RunOp) if isinstance(effect, RunOp))
    assert not (reversible and freed)
    told = ask(core, Verb.ABORT)
    assert told.done is reversible
    core.settle()
    assert isinstance(core.state.phase, Steady)
    assert bool(core.asked(AbortOps)) is reversible
    assert (core.state.plan.stages == stages) is reversible
    assert core.releases == 3


# --- rollback ----------------------------------------------------------------------------------------------------------


def test_rollback_returns_to_the_plan_before_by_a_forced_transition() -> None:
    core = steady(SCRIPT)
    before = core.state.plan.stages
    core.boundary()
    core.settle()
    assert core.state.plan.stages != before
    assert ask(core, Verb.ROLLBACK, "back").done
    assert core.decisions[-1].command == "back"
    assert core.decisions[-1].verdict.code is Code.ADMITTED_FORCED
    core.boundary()
    core.settle()
    assert core.state.plan.stages == before
    assert core.state.plan.epoch == 2


def test_rollback_onto_devices_that_are_gone_is_refused_with_their_numbers() -> None:
    core = steady(SCRIPT)
    core.boundary()
    core.settle()
    core.post(PoolChanged(step=3, arriving=(), leaving={3: 9}))
    told = ask(core, Verb.ROLLBACK)
    assert not told.done
    assert "[3]" in told.reason


def test_rollback_in_a_pause_is_carried_out_when_the_loop_is_let_go() -> None:
    core = steady(SCRIPT)
    before = core.state.plan.stages
    core.boundary()
    core.settle()
    ask(core, Verb.PAUSE)
    core.boundary()
    assert ask(core, Verb.ROLLBACK).done
    assert isinstance(core.state.phase, Paused)
    ask(core, Verb.RESUME)
    core.settle()
    assert core.state.plan.stages == before


def test_commands_are_events_like_any_other_and_replay() -> None:
    core = steady(SCRIPT)
    for verb in (Verb.PAUSE, Verb.ROLLBACK, Verb.RESUME, Verb.ABORT):
        ask(core, verb)
        if isinstance(core.state.phase, Steady):
            core.boundary()
        core.settle()
    again = Core(core.state.config)
    for event, _ in core.events:
        again.post(event)
    assert replace(again.state, config=core.state.config) == core.state
    assert len(again.asked(ReleaseBoundary)) == core.releases
