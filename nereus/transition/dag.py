"""The transition DAG: the local DAGs of all changed model-stages in one safe order (paper, section 6).

Release before acquire: of the movements that are ready, Destroys come first. Ties go generation, inference, training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.unit import Emu, phi
from nereus.errors import LayoutError
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.layout import UNSHARDED
from nereus.layout.moves import NodeOf
from nereus.spec.stages import ROLES, role_of
from nereus.transition.local import LocalDag, local_dag
from nereus.transition.lowering import lower, sites_read
from nereus.transition.movement import Movement, fused, resharded, unfused
from nereus.transition.ops import BUCKET_BYTES, Transition

Exclusive = Callable[[str, str], bool]
"""Whether two model-stages may not own one device at the same time."""

Movements = Mapping[str, tuple[Movement, ...]]
Key = tuple[str, int]
"""A movement of a model-stage."""
Edges = dict[Key, set[Key]]


def stage_rank(stage: str) -> tuple[int, str]:
    """The place of a model-stage in the tie order."""
    role = role_of(stage)
    return (ROLES.index(role) if role is not None else len(ROLES), stage)


def transition_dag(
    current: Mapping[str, tuple[Emu, ...]],
    targets: Mapping[str, StagePlan],
    states: Mapping[str, StateSpec],
    endpoint_of: Mapping[DeviceId, EndpointId],
    epoch: int,
    node_of: NodeOf | None = None,
    exclusive: Exclusive = lambda a, b: False,
    *,
    fuse: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
) -> Transition:
    """The operations that turn the current EMUs of each changed model-stage into those of its target plan.

    `exclusive(a, b)` says that two model-stages run concurrently and so never own a device together; an acquisition by one
    then waits for the Destroy by which the other gives the device up. Fused movements release later than single ones:
    where such waits then go in a circle, and with `fuse` off, every primitive moves on its own. Raises LayoutError if they
    still do.
    """
    stages = sorted(targets, key=stage_rank)
    dags = {stage: local_dag(current[stage], targets[stage], endpoint_of, epoch, node_of) for stage in stages}
    results = {stage: _result(dags[stage], current[stage], targets[stage], endpoint_of, epoch) for stage in stages}

    def movements(stage: str, *, fuse: bool) -> tuple[Movement, ...]:
        if results[stage] == current[stage]:
            return ()
        if results[stage] != dags[stage].result:
            return resharded(dags[stage], current[stage], results[stage])
        state = states[stage]
        return (
            fused(dags[stage], current[stage], lambda m: sites_read(m, state, node_of or {}))
            if fuse
            else unfused(dags[stage])
        )

    for attempt in (True, False) if fuse else (False,):
        planned = {stage: movements(stage, fuse=attempt) for stage in stages}
        after = _edges(planned, current, exclusive)
        try:
            order = _dispatch_order(planned, after)
            break
        except LayoutError:
            if not attempt:
                raise
    names = {key: _name(planned[key[0]][key[1]], epoch, place) for place, key in enumerate(order)}
    ops = tuple(
        lower(
            planned[stage][index],
            states[stage],
            names[stage, index],
            tuple(sorted(names[k] for k in after[stage, index])),
            node_of or {},
            bucket_bytes,
        )
        for stage, index in order
    )
    return Transition(ops, tuple(emu for stage in stages for emu in results[stage]))


def _result(
    dag: LocalDag,
    current: tuple[Emu, ...],
    target: StagePlan,
    endpoint_of: Mapping[DeviceId, EndpointId],
    epoch: int,
) -> tuple[Emu, ...]:
    """The units of a target plan: those of its local DAG, or newborn ones where replicas share their optimizer state."""
    if not (target.zero1 and target.dp > 1) and all(emu.optimizer == UNSHARDED for emu in current):
        return dag.result
    wanted = phi(target, endpoint_of, epoch)
    if [replace(emu, unit=wanted[0].unit) for emu in current] == [replace(emu, unit=wanted[0].unit) for emu in wanted]:
        return current
    born = sum(len(step.primitive.makes) for step in dag.steps)
    return tuple(replace(emu, unit=replace(emu.unit, index=born + emu.unit.index)) for emu in wanted)


def _name(movement: Movement, epoch: int, place: int) -> str:
    """Such as e3.0.Split+Merge, or e3.0.Reshard where only the optimizer state is cut anew."""
    kinds = dict.fromkeys(type(primitive).__name__ for primitive in movement.primitives)
    return f"e{epoch}.{place}.{'+'.join(kinds) or 'Reshard'}"


def _edges(planned: Movements, current: Mapping[str, tuple[Emu, ...]], exclusive: Exclusive) -> Edges:
    """What each movement waits for: its own model-stage's, and what exclusive ones release for it."""
    after: Edges = {}
    for stage, movements in planned.items():
        owned = {endpoint for emu in current[stage] for endpoint in emu.endpoints}
        for index, movement in enumerate(movements):
            waits = after.setdefault((stage, index), {(stage, i) for i in movement.after})
            acquired = {e for emu in movement.makes for e in emu.endpoints} - owned
            for other, released in planned.items():
                if other == stage or not acquired or not exclusive(stage, other):
                    continue
                waits |= {(other, i) for i, by in enumerate(released) if acquired & {site.endpoint for site in by.frees}}
    return after


def _dispatch_order(planned: Movements, after: Edges) -> list[Key]:
    """A topological order of all movements: release before acquire, then stage order, then the local default order."""
    waiting = [(stage, index) for stage, movements in planned.items() for index in range(len(movements))]
    done: set[Key] = set()
    order: list[Key] = []
    while waiting:
        ready = [key for key in waiting if after[key] <= done]
        if not ready:
            names = ", ".join(_name(planned[stage][index], 0, index) + f" of {stage}" for stage, index in waiting)
            raise LayoutError(f"the devices that these wait for are released in a circle: {names}; change in two steps")
        releases = [(stage, index) for stage, index in ready if not planned[stage][index].makes]
        chosen = (releases or ready)[0]
        waiting.remove(chosen)
        done.add(chosen)
        order.append(chosen)
    return order
