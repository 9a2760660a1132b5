"""What the terms of an answer spare the planner, and that they change no decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import inf

import pytest

from nereus.emu.plan import StagePlan
from nereus.policy.admission import Code, Terms, admit
from nereus.policy.proposal import Proposal, propose, transition_to
from nereus.policy.snapshot import Snapshot
from nereus.transition.estimate import LinkRates
from nereus.transition.least import least_move, missing_of
from nereus.transition.traffic import missing_bytes
from tests.policy.snapshots import SNAPSHOTS, STATES

TOP = 5
LINKS = (LinkRates(), LinkRates(near_bytes_s=4e9, group_s=0.1, base_s=0.5), LinkRates(op_s=0.0, group_s=0.0, base_s=0.0))

each_snapshot = pytest.mark.parametrize("name", SNAPSHOTS)


@lru_cache
def everything(name: str, links: LinkRates = LINKS[0]) -> tuple[Proposal, ...]:
    """All proposals, compiled: nothing is spared."""
    return propose(replace(SNAPSHOTS[name], links=links), TOP)


def changed(snapshot: Snapshot, proposal: Proposal) -> dict[str, StagePlan]:
    return {name: plan for name, plan in proposal.stages.items() if plan != snapshot.plan.stages[name]}


def taken(found: Iterable[Proposal], current_s: float, terms: Terms) -> Proposal | None:
    """The proposal that the core admits: the first that is feasible and passes."""
    passing = (p for p in found if p.infeasible is None and p.compiled)
    return next((p for p in passing if terms.admit(current_s, p.l_step_s, p.l_tran_s).is_admitted), None)


@pytest.mark.parametrize("links", LINKS)
@each_snapshot
def test_least_move_is_never_more_than_the_transition_takes(name: str, links: LinkRates) -> None:
    snapshot = replace(SNAPSHOTS[name], links=links)
    for proposal in everything(name, links):
        least = least_move(
            snapshot.emus,
            changed(snapshot, proposal),
            snapshot.states,
            snapshot.endpoint_of,
            snapshot.endpoint_nodes,
            links,
        )
        if proposal.infeasible is None:
            assert least.seconds <= proposal.l_tran_s
            assert least.num_bytes <= proposal.bytes_moved


@each_snapshot
def test_missing_bytes_of_a_target_are_those_that_its_units_lack(name: str) -> None:
    """Against the catalogs of the units before and after."""
    snapshot = SNAPSHOTS[name]
    for proposal in everything(name):
        plans = changed(snapshot, proposal)
        transition, _ = transition_to(snapshot, plans, 1)
        for stage, plan in plans.items():
            after = [emu for emu in transition.result if emu.stage == stage]
            lacking = missing_of(snapshot.emus[stage], plan, STATES[stage], snapshot.endpoint_of)
            assert sum(lacking.values()) == missing_bytes(snapshot.emus[stage], after, STATES[stage])


@pytest.mark.parametrize("horizon", [0.01, 1.0, 4.0, 30.0, 1000.0])
@pytest.mark.parametrize("urgent", [False, True])
@each_snapshot
def test_terms_change_neither_what_is_admitted_nor_whether(name: str, urgent: bool, horizon: float) -> None:
    snapshot, terms = SNAPSHOTS[name], Terms(horizon_steps=horizon, urgent=urgent)
    current_s = snapshot.l_step_s()
    spared = propose(replace(snapshot, terms=terms), TOP)
    assert taken(spared, current_s, terms) == taken(everything(name), current_s, terms)


@each_snapshot
def test_no_proposal_comes_after_the_one_that_is_admitted(name: str) -> None:
    snapshot, terms = SNAPSHOTS[name], Terms(horizon_steps=1.0, urgent=True)
    found = propose(replace(snapshot, terms=terms), TOP)
    whole = everything(name)
    first = next((at for at, proposal in enumerate(whole) if proposal.infeasible is None), len(whole))
    assert found == whole[: first + 1]


def test_proposal_that_cannot_pay_has_no_transition() -> None:
    """With gamma = 0 nothing pays, so nothing is compiled; what is told of it is the least that it takes."""
    snapshot = SNAPSHOTS["half of the pool in use"]
    found = propose(replace(snapshot, terms=Terms(horizon_steps=10.0, gamma=0.0)), TOP)
    assert [proposal.stages for proposal in found] == [proposal.stages for proposal in everything("half of the pool in use")]
    for lazy, whole in zip(found, everything("half of the pool in use"), strict=True):
        assert not lazy.compiled
        assert not lazy.primitives
        assert lazy.l_tran_s <= whole.l_tran_s


def test_forced_terms_compile_the_first_and_stop() -> None:
    snapshot = SNAPSHOTS["all of the pool in use"]
    (found,) = propose(replace(snapshot, terms=Terms(horizon_steps=1.0, forced=True)), TOP)
    assert found == everything("all of the pool in use")[0]


def test_transition_that_was_refused_by_a_bound_is_told_so_and_not_admitted() -> None:
    verdict = admit(2.0, 1.0, 3.0, 4.0, urgent=False, at_least=True)
    assert verdict.code is Code.REJECTED_BOUND
    assert not verdict.is_admitted
    assert verdict.reason == "moving takes at least 3.00 s and saves 1.00 s a step: paid back in at least 3.00 of 2.00 steps"


def test_bound_on_a_plan_that_is_no_faster_is_no_gain() -> None:
    assert admit(1.0, 1.0, 0.0, inf, urgent=False, at_least=True).code is Code.REJECTED_NO_GAIN
