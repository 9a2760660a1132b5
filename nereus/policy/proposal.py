"""From a snapshot to the N best proposals: search, placement, transition DAG, memory check, cost of moving.

    Snapshot -> search (fastest first) -> place on the pool -> transition DAG -> does it fit? -> L_tran -> Proposal

Pure: this is what the planner process runs. The decision itself, admit or not, is the control core's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nereus.emu.plan import Plan, StagePlan
from nereus.errors import LayoutError
from nereus.planner.pricing import Target
from nereus.policy.admission import Code
from nereus.policy.compiling import Asked, compiled
from nereus.policy.placing import place, seats_of
from nereus.policy.snapshot import Snapshot
from nereus.transition.estimate import Estimate, estimated
from nereus.transition.feasibility import MemoryCheck
from nereus.transition.least import least_move
from nereus.transition.ops import Transition
from nereus.transition.traffic import new_groups


@dataclass(frozen=True, slots=True)
class Proposal:
    """One target plan, and what going there would cost."""

    stages: Mapping[str, StagePlan]
    """All model-stages, placed; those that stay as they are equal the plan in force."""
    l_step_s: float
    peak_bytes: int
    """Of the target plan."""
    l_tran_s: float
    transition_peak_bytes: int
    """Of moving there."""
    primitives: Mapping[str, int]
    bytes_moved: int
    infeasible: tuple[Code, str] | None
    """Why it cannot be carried out, if so."""
    compiled: bool = True
    """Whether there is a transition DAG for it. If not, L_tran and the bytes are the least that moving there can take, which
    the terms refuse already, and whether it fits is not known."""


def propose(snapshot: Snapshot, top: int) -> tuple[Proposal, ...]:
    """The best `top` plans on the usable devices without the one in force, fastest first, as far as they are asked for.

    With terms the first that they admit is the last, and what cannot pay is not compiled. If none can be reached, one more
    that moves nothing.
    """
    ranked, current_s = _ranked(snapshot, top), snapshot.l_step_s()
    found: list[Proposal] = []
    for candidate in ranked[:top]:
        found.append(_looked_at(snapshot, candidate, current_s))
        if _admitted(snapshot, found[-1], current_s):
            return tuple(found)
    for candidate in ranked[top:]:
        more = _looked_at(snapshot, candidate, current_s)
        if not more.compiled or more.primitives or more.infeasible is not None:
            continue
        if not any(_is_reachable(snapshot, proposal) for proposal in found):
            found.append(more)
        break
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A target of the search placed on the pool, and the model-stages that it would change."""

    stages: Mapping[str, StagePlan]
    changed: Mapping[str, StagePlan]
    l_step_s: float
    peak_bytes: int


def _ranked(snapshot: Snapshot, top: int) -> list[_Candidate]:
    """What there is to choose from, fastest first."""
    pricing, pool, lengths = snapshot.pricing, snapshot.pool, snapshot.lengths
    # The layouts in force with other micro-batches move nothing, so they may fit where no transition does.
    targets = (*pricing.search(pool, lengths, top + 1), *pricing.search(pool, lengths, 1, like=snapshot.plan))
    candidates = [one for one in (_placed(snapshot, target) for target in targets) if one is not None]
    return sorted({str(one.stages): one for one in candidates}.values(), key=lambda one: one.l_step_s)


def _placed(snapshot: Snapshot, target: Target) -> _Candidate | None:
    """A target of the search placed on the pool; None if nothing would change, or pins ask for more than there is."""
    seats = seats_of(snapshot, target) if target.placed else {}
    placed = {name: place(snapshot, plan, seats.get(name)) for name, plan in target.stages.items()}
    if not snapshot.pins:
        return _candidate(snapshot, placed, target.seconds, target.peak_bytes)
    kept = {**placed, **{name: plan for name, plan in snapshot.plan.stages.items() if name in snapshot.pins}}
    plan = Plan(snapshot.plan.epoch, kept)
    peak = max(snapshot.pricing.peaks(plan, snapshot.lengths).values())
    if peak > snapshot.pricing.usable_bytes:
        return None
    return _candidate(snapshot, kept, snapshot.pricing.step_seconds(plan, snapshot.lengths), peak)


def _candidate(snapshot: Snapshot, placed: Mapping[str, StagePlan], l_step_s: float, peak_bytes: int) -> _Candidate | None:
    changed = {
        name: placed[name] for name, now in snapshot.plan.stages.items() if name in placed and _differs(placed[name], now)
    }
    stages = {**snapshot.plan.stages, **changed}
    if stages == snapshot.plan.stages and snapshot.is_bound:
        return None
    return _Candidate(stages, changed, l_step_s, peak_bytes)


def _looked_at(snapshot: Snapshot, candidate: _Candidate, current_s: float) -> Proposal:
    """A candidate compiled, unless the terms refuse even the least that moving there can take."""
    if snapshot.terms is not None:
        least = least_move(
            snapshot.emus,
            candidate.changed,
            snapshot.states,
            snapshot.endpoint_of,
            snapshot.endpoint_nodes,
            snapshot.links,
        )
        if not snapshot.terms.admit(current_s, candidate.l_step_s, least.seconds).is_admitted:
            return Proposal(
                stages=candidate.stages,
                l_step_s=candidate.l_step_s,
                peak_bytes=candidate.peak_bytes,
                l_tran_s=least.seconds,
                transition_peak_bytes=0,
                primitives={},
                bytes_moved=least.num_bytes,
                infeasible=None,
                compiled=False,
            )
    return _compiled(snapshot, candidate)


def _admitted(snapshot: Snapshot, proposal: Proposal, current_s: float) -> bool:
    """Whether the core will take this one, so that no other need be looked at."""
    if snapshot.terms is None or proposal.infeasible is not None or not proposal.compiled:
        return False
    return snapshot.terms.admit(current_s, proposal.l_step_s, proposal.l_tran_s).is_admitted


def _is_reachable(snapshot: Snapshot, proposal: Proposal) -> bool:
    if proposal.compiled:
        return proposal.infeasible is None
    again = proposal_of(snapshot, proposal.stages, proposal.l_step_s, proposal.peak_bytes)
    return again is not None and again.infeasible is None


def proposal_of(snapshot: Snapshot, placed: Mapping[str, StagePlan], l_step_s: float, peak_bytes: int) -> Proposal | None:
    """Placed stage plans, and what going there would cost; None if nothing would change."""
    candidate = _candidate(snapshot, placed, l_step_s, peak_bytes)
    return _compiled(snapshot, candidate) if candidate else None


def _compiled(snapshot: Snapshot, candidate: _Candidate) -> Proposal:
    """What going there would cost."""

    def proposal(infeasible: tuple[Code, str] | None, l_tran_s: float, peak: int, moved: Transition | None) -> Proposal:
        return Proposal(
            stages=candidate.stages,
            l_step_s=candidate.l_step_s,
            peak_bytes=candidate.peak_bytes,
            l_tran_s=l_tran_s,
            transition_peak_bytes=peak,
            primitives=moved.counts if moved else {},
            bytes_moved=moved.num_bytes if moved else 0,
            infeasible=infeasible,
        )

    if snapshot.restore_s is not None:
        return proposal(None, snapshot.restore_s, 0, None)
    try:
        transition, memory = transition_to(snapshot, candidate.changed, snapshot.plan.epoch + 1)
    except LayoutError as error:
        return proposal((Code.INFEASIBLE_ORDER, str(error)), 0.0, 0, None)
    seconds = expected(snapshot, transition).seconds
    reason = (Code.INFEASIBLE_MEMORY, str(memory.violation)) if memory.violation else None
    return proposal(reason, seconds, max(memory.peak_bytes.values(), default=0), transition)


def transition_to(snapshot: Snapshot, changed: Mapping[str, StagePlan], epoch: int) -> tuple[Transition, MemoryCheck]:
    """The transition DAG from the units of the snapshot to these stage plans, and whether it fits.

    What does not fit at once is put in another order, or streamed. Raises LayoutError if there is no order.
    """
    asked = Asked(
        changed=tuple(changed.items()),
        emus=tuple(snapshot.emus.items()),
        states=tuple(snapshot.states.items()),
        endpoint_of=tuple(snapshot.endpoint_of.items()),
        node_of=tuple(snapshot.endpoint_nodes.items()),
        apart=snapshot.pricing.apart,
        epoch=epoch,
        usable_bytes=snapshot.pricing.usable_bytes,
        bucket_bytes=snapshot.bucket_bytes,
        links=snapshot.links,
    )
    return compiled(asked)


def expected(snapshot: Snapshot, transition: Transition) -> Estimate:
    """What a transition from the units of the snapshot is predicted to take."""
    groups = new_groups(transition, snapshot.ready)
    return estimated(transition, groups, snapshot.links, snapshot.endpoint_nodes)


def _differs(target: StagePlan, current: StagePlan) -> bool:
    """Whether a stage plan changes anything; the order of replicas does not matter."""

    def way(plan: StagePlan) -> tuple[object, ...]:
        return plan.layout, plan.micro_batch, plan.zero1, plan.recompute, set(plan.groups)

    return way(target) != way(current)
