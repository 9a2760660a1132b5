"""Which units are whole when a transition ends before its commit, so that the job can go on from them.

    units in force - what a started operation frees - those that lost a rank
    + units whose operation has completed on all its members            -> one family of each model-stage stands

A unit counts as freed as soon as an operation that frees it was started, and as made only when all members have done their
part. A stream holds each tensor either before or after its bucket: with all members alive it is run to its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from nereus.control.carrying import Carrying, Leg
from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, UnitId
from nereus.transition.ops import Op

Family = tuple[Emu, ...]
"""Units of one model-stage that share a layout and no endpoint: what a plan can have in force."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is to go on with."""

    emus: Mapping[str, Family]
    """Of the model-stages that were changing; none for one whose last copy is gone."""
    unfinished: tuple[Op, ...]
    """Streams that were interrupted, whose end some of these units wait for."""


def standing(
    carrying: Carrying, live: frozenset[EndpointId], reported: Mapping[EndpointId, Set[str]], *, forward: bool
) -> Standing:
    """What stands after a transition was interrupted.

    `reported` are the operations that each endpoint says it has done. `forward`: whole units that it leads to are preferred
    to those that it began from.
    """
    task = carrying.task
    before, result = task.before, task.transition.result
    started = [op for op in task.transition.ops if op.id in carrying.done or op.id in carrying.running]
    freed = {site.unit for op in started for site in op.frees}
    made, unfinished = list[Emu](), list[Op]()
    for op in started:
        if _is_complete(carrying, op, reported):
            made += op.makes
        elif op.stream is not None and live.issuperset(op.members):
            unfinished.append(op)
            made += op.makes
    if carrying.leg is Leg.BIND:
        # Some endpoints have released what is not bound; all that is was proven.
        before, made, freed = (), list(result), set()
    intact = [
        emu
        for emu in {emu.unit: emu for emu in (*before, *made)}.values()
        if emu.unit not in freed and emu.unit not in carrying.wrong and live.issuperset(emu.endpoints)
    ]
    preferred = result if forward or carrying.leg >= Leg.HELD else task.before
    chosen = {
        stage: _family([emu for emu in intact if emu.stage == stage], [emu for emu in preferred if emu.stage == stage])
        for stage in dict.fromkeys(emu.stage for emu in (*task.before, *result))
    }
    wanted = {emu.unit for family in chosen.values() for emu in family}
    return Standing(chosen, tuple(op for op in unfinished if any(emu.unit in wanted for emu in op.makes)))


def is_reversible(carrying: Carrying) -> bool:
    """Whether all units in force are whole: nothing that frees any of them was started."""
    started = [op for op in carrying.task.transition.ops if op.id in carrying.done or op.id in carrying.running]
    return carrying.leg < Leg.HELD and not any(op.frees for op in started)


def plan_of(family: Family, known: Sequence[StagePlan], device_of: Mapping[EndpointId, DeviceId]) -> StagePlan:
    """The stage plan that a family is: one of those known, or the first of them on just these units."""
    groups = [tuple(device_of[endpoint] for endpoint in emu.endpoints) for emu in family]
    layout = family[0].layout
    for plan in known:
        if layout == plan.layout and sorted(groups) == sorted(plan.groups):
            return plan
    devices = tuple(device for group in groups for device in group)
    return replace(known[0], layout=layout, dp=len(family), devices=devices, zero1=family[0].optimizer.parts > 1)


def survivors(emus: Family, dead: Set[EndpointId]) -> Family:
    """The units without those that lost a rank; none where replicas share an optimizer state of which a part is gone."""
    left = tuple(emu for emu in emus if not dead & set(emu.endpoints))
    return left if _has_whole_optimizer(left) else ()


def _is_complete(carrying: Carrying, op: Op, reported: Mapping[EndpointId, Set[str]]) -> bool:
    waited = carrying.running.get(op.id, frozenset())
    return op.id in carrying.done or all(op.id in reported.get(endpoint, ()) for endpoint in waited)


def _family(emus: Sequence[Emu], preferred: Sequence[Emu]) -> Family:
    """All of the preferred units, or else the family that covers most devices; of equals that with most preferred ones."""
    known = {emu.unit for emu in emus}
    if preferred and all(emu.unit in known for emu in preferred):
        return tuple(preferred)
    place = {emu.unit: index for index, emu in enumerate(preferred)}
    families: dict[object, list[Emu]] = {}
    for emu in sorted(emus, key=lambda emu: (place.get(emu.unit, len(place)), emu.unit.birth_epoch, emu.unit.index)):
        held = families.setdefault((emu.layout, emu.optimizer.parts), [])
        if all(set(emu.endpoints).isdisjoint(other.endpoints) for other in held):
            held.append(emu)
    able = [tuple(family) for family in families.values() if _has_whole_optimizer(tuple(family))]
    return max(able, key=lambda family: (_covered(family), _known(family, place)), default=())


def _covered(family: Family) -> int:
    return sum(len(emu.endpoints) for emu in family)


def _known(family: Family, place: Mapping[UnitId, int]) -> int:
    return sum(emu.unit in place for emu in family)


def _has_whole_optimizer(family: Family) -> bool:
    """Whether the parts of the optimizer state that the units keep are all there (ZeRO-1)."""
    parts = {emu.optimizer.parts for emu in family}
    return parts <= {1} or all({emu.optimizer.part for emu in family} == set(range(count)) for count in parts)
