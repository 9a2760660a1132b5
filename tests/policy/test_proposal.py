"""Proposals on the model of examples/quickstart.yaml and a pool of 8 devices on 2 nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import pytest

from nereus.emu.plan import Plan, StagePlan
from nereus.emu.unit import Emu, phi
from nereus.layout.catalog import Site, UnitId
from nereus.layout.layout import Layout
from nereus.policy.admission import Code
from nereus.policy.proposal import Proposal, propose, transition_to
from nereus.policy.snapshot import Snapshot
from nereus.spec.stages import STAGES
from tests.builders import ENDPOINT_OF
from tests.policy.snapshots import DEVICES, MIB, NODE_OF, SNAPSHOTS, STATES, everywhere, native, pricing_of, snapshot_of

TOP = 5

each_snapshot = pytest.mark.parametrize("name", SNAPSHOTS)


@lru_cache
def proposals_of(name: str) -> tuple[Proposal, ...]:
    return propose(SNAPSHOTS[name], TOP)


def changed(snapshot: Snapshot, proposal: Proposal) -> dict[str, StagePlan]:
    """The model-stages that a proposal changes."""
    return {name: plan for name, plan in proposal.stages.items() if plan != snapshot.plan.stages[name]}


def where(emus: Iterable[Emu]) -> set[tuple[Layout, tuple[str, ...]]]:
    return {(emu.layout, emu.endpoints) for emu in emus}


# --- which plans -------------------------------------------------------------------------------------------------------


@each_snapshot
def test_proposals_exclude_the_plan_in_force_and_each_other(name: str) -> None:
    snapshot, found = SNAPSHOTS[name], proposals_of(name)
    assert found
    shapes = [tuple((s, str(p.layout), p.dp) for s, p in sorted(proposal.stages.items())) for proposal in found]
    assert len(set(shapes)) == len(shapes)
    for proposal in found:
        assert set(proposal.stages) == set(STAGES)
        assert changed(snapshot, proposal)


@each_snapshot
def test_proposals_come_fastest_first_with_the_latency_of_their_plan(name: str) -> None:
    snapshot, found = SNAPSHOTS[name], proposals_of(name)
    assert [p.l_step_s for p in found] == sorted(p.l_step_s for p in found)
    for proposal in found:
        seconds = snapshot.pricing.step_seconds(Plan(1, proposal.stages), snapshot.lengths)
        assert proposal.l_step_s == pytest.approx(seconds)


@each_snapshot
def test_proposals_use_usable_devices_only(name: str) -> None:
    for proposal in proposals_of(name):
        assert Plan(1, proposal.stages).devices <= set(SNAPSHOTS[name].usable)


@each_snapshot
def test_proposals_fit_in_memory_on_every_device(name: str) -> None:
    """The placed plan, not only the one that the search looked at."""
    snapshot = SNAPSHOTS[name]
    for proposal in proposals_of(name):
        peaks = snapshot.pricing.peaks(Plan(1, proposal.stages), snapshot.lengths)
        assert max(peaks.values()) <= proposal.peak_bytes <= snapshot.pricing.usable_bytes


@each_snapshot
def test_proposals_keep_tensor_parallel_groups_inside_a_node(name: str) -> None:
    for proposal in proposals_of(name):
        for plan in proposal.stages.values():
            for start in range(0, len(plan.devices), plan.layout.tp):
                assert len({NODE_OF[device] for device in plan.devices[start : start + plan.layout.tp]}) == 1


def test_proposals_are_as_many_as_asked_for_where_there_are_enough() -> None:
    assert [len(propose(SNAPSHOTS["half of the pool in use"], top)) for top in (1, 3)] == [1, 3]


def test_proposals_are_the_same_each_time() -> None:
    assert propose(SNAPSHOTS["what is used leaves"], 2) == propose(SNAPSHOTS["what is used leaves"], 2)


def test_pool_that_doubles_gives_proposals_that_use_it_and_are_faster() -> None:
    snapshot = SNAPSHOTS["half of the pool in use"]
    best = proposals_of("half of the pool in use")[0]
    assert len(Plan(1, best.stages).devices) == 8
    assert best.l_step_s < snapshot.l_step_s()
    assert best.primitives.get("Extend")


def test_pool_cut_in_half_gives_proposals_that_leave_the_lost_devices() -> None:
    found = proposals_of("the second node leaves")
    for proposal in found:
        assert Plan(1, proposal.stages).devices <= {0, 1, 2, 3}
    assert any(proposal.infeasible is None and proposal.primitives.get("Destroy") for proposal in found)


def test_tight_memory_gives_a_proposal_that_fits_where_the_plan_in_force_does_not() -> None:
    snapshot = SNAPSHOTS["memory is tight"]
    assert snapshot.peak_bytes() > snapshot.pricing.usable_bytes
    assert all(proposal.peak_bytes <= snapshot.pricing.usable_bytes for proposal in proposals_of("memory is tight"))
    assert any(proposal.infeasible is None for proposal in proposals_of("memory is tight"))


def test_tight_memory_proposes_a_smaller_micro_batch_where_nothing_can_move() -> None:
    """The urgent path "also considers smaller per-replica batches" (paper, section 4.3); they move nothing."""
    snapshot = replace(SNAPSHOTS["memory is tight"], pricing=pricing_of(15 * MIB))
    smaller = {name: replace(plan, micro_batch=4) for name, plan in snapshot.plan.stages.items()}
    peaks = snapshot.pricing.peaks(Plan(1, smaller), snapshot.lengths)
    assert max(peaks.values()) <= snapshot.pricing.usable_bytes < snapshot.peak_bytes()
    assert any(proposal.infeasible is None for proposal in propose(snapshot, 20))


def test_memory_that_admits_no_plan_gives_no_proposal() -> None:
    assert propose(replace(SNAPSHOTS["half of the pool in use"], pricing=pricing_of(MIB)), TOP) == ()


# --- how to get there --------------------------------------------------------------------------------------------------


@each_snapshot
def test_feasible_proposals_lead_to_their_plan(name: str) -> None:
    """The units at the end are Phi of the proposed plan; each was made from units that were there, or stayed."""
    snapshot = SNAPSHOTS[name]
    for proposal in proposals_of(name):
        if proposal.infeasible:
            continue
        targets = changed(snapshot, proposal)
        transition, _ = transition_to(snapshot, targets, 1)
        alive: dict[UnitId, Emu] = {emu.unit: emu for emus in snapshot.emus.values() for emu in emus}
        gone: set[Site] = set()
        for op in transition.ops:
            alive.update({emu.unit: emu for emu in op.makes})
            moves = [*op.local, *(move for x in op.exchanges for move in getattr(x, "moves", ()))]
            for move in moves:
                assert move.source.endpoint in alive[move.source.unit].endpoints
                assert move.source not in gone
                assert move.target.unit in {emu.unit for emu in op.makes}
            gone |= set(op.frees)
        staying = {emu.unit for emu in transition.result} | {e.unit for e in alive.values() if e.stage not in targets}
        assert not {site.unit for site in gone} & staying
        alive = {unit: emu for unit, emu in alive.items() if unit in staying}
        assert set(transition.result) <= set(alive.values())
        for stage, plan in proposal.stages.items():
            assert where(emu for emu in alive.values() if emu.stage == stage) == where(phi(plan, ENDPOINT_OF, 1)), stage


@each_snapshot
def test_leaving_devices_are_sources_and_never_targets(name: str) -> None:
    """A Split may cut a unit where it is; nothing is brought to a device that leaves."""
    snapshot = SNAPSHOTS[name]
    leaving = {ENDPOINT_OF[device] for device in set(DEVICES) - set(snapshot.usable)}
    for proposal in proposals_of(name):
        if not proposal.infeasible:
            transition, _ = transition_to(snapshot, changed(snapshot, proposal), 1)
            assert not leaving & {e for emu in transition.result for e in emu.endpoints}
            for op in transition.ops:
                if {"Extend", "Merge"} & set(op.primitives):
                    assert not leaving & {e for emu in op.makes for e in emu.endpoints}


@each_snapshot
def test_proposals_say_what_moving_costs(name: str) -> None:
    snapshot = SNAPSHOTS[name]
    for proposal in proposals_of(name):
        if proposal.infeasible and proposal.infeasible[0] is Code.INFEASIBLE_ORDER:
            continue
        transition, _ = transition_to(snapshot, changed(snapshot, proposal), 1)
        assert proposal.primitives == transition.counts
        assert proposal.bytes_moved == transition.num_bytes
        assert proposal.l_tran_s >= snapshot.links.op_s
        held = predicted_state(snapshot)
        assert proposal.transition_peak_bytes >= max(held.values())
        fits = proposal.transition_peak_bytes <= snapshot.pricing.usable_bytes
        assert fits == (proposal.infeasible is None)
        if proposal.infeasible:
            assert proposal.infeasible[0] is Code.INFEASIBLE_MEMORY
            assert "bytes" in proposal.infeasible[1]


def predicted_state(snapshot: Snapshot) -> dict[str, int]:
    """Bytes of state on each endpoint now."""
    held: dict[str, int] = {}
    for stage, emus in snapshot.emus.items():
        for emu in emus:
            for rank, endpoint in enumerate(emu.endpoints):
                held[endpoint] = held.get(endpoint, 0) + STATES[stage].shard_bytes(emu.layout, rank)
    return held


def test_transition_that_does_not_fit_is_named_infeasible_with_its_numbers() -> None:
    """A unit of the training state takes 5 MB, and an Extend from the only replica needs that and as much in buffers."""
    snapshot = snapshot_of(everywhere("dp1"), capacity_bytes=64 * MIB, micro_batch=4, longest=6)
    found = [propose(replace(snapshot, pricing=pricing_of(mib * MIB)), TOP) for mib in (10, 14, 64)]
    reasons = [p.infeasible for proposals in found for p in proposals if p.infeasible]
    assert {code for code, _ in reasons} <= {Code.INFEASIBLE_MEMORY}
    assert any(reasons)
    assert all(p.infeasible is None for p in found[-1])


def test_change_of_micro_batch_alone_moves_nothing() -> None:
    snapshot = snapshot_of(everywhere("dp8"), micro_batch=4)
    for proposal in propose(snapshot, TOP):
        if all(plan.groups == snapshot.plan.stages[name].groups for name, plan in proposal.stages.items()):
            assert (proposal.bytes_moved, dict(proposal.primitives)) == (0, {})
            assert proposal.infeasible is None
            return
    pytest.fail("the same layouts with a larger micro-batch are faster, so they are proposed")


# --- the snapshot ------------------------------------------------------------------------------------------------------


def test_snapshot_predicts_latency_and_peak_of_the_plan_in_force() -> None:
    snapshot = SNAPSHOTS["all of the pool in use"]
    seconds = sum(native(snapshot).cost.stage_seconds(p, native(snapshot).batch(12)) for p in snapshot.plan.stages.values())
    assert snapshot.l_step_s() == pytest.approx(seconds + native(snapshot).cost.sync_seconds(8))
    peaks = snapshot.pricing.peaks(snapshot.plan, snapshot.lengths)
    assert snapshot.peak_bytes() == max(peaks.values())
    assert snapshot.pricing.usable_bytes == pytest.approx(0.9 * 64 * MIB)


def test_endpoints_are_on_the_nodes_of_their_devices() -> None:
    nodes = SNAPSHOTS["all of the pool in use"].endpoint_nodes
    assert [nodes[ENDPOINT_OF[device]] for device in DEVICES] == [0, 0, 0, 0, 1, 1, 1, 1]
