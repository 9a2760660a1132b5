"""The transition DAG: the local DAGs of all changed model-stages in one safe order (paper, section 6).

    stage plans -> local DAGs -> movements -> what each waits for -> no circle? release before acquire -> operations
                                                 circle? other primitives for the same target (nereus.transition.ways)

Ties go generation, inference, training. Memory comes after it (nereus.transition.feasibility).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.primitives import Endpoints
from nereus.emu.unit import Emu, phi
from nereus.errors import LayoutError
from nereus.layout.catalog import EndpointId, StateSpec, by_number
from nereus.layout.layout import UNSHARDED
from nereus.layout.moves import NodeOf
from nereus.transition.local import LocalDag, local_dag
from nereus.transition.lowering import lower, sites_read
from nereus.transition.movement import Movement, fused, resharded, unfused
from nereus.transition.ops import BUCKET_BYTES, Op, Transition
from nereus.transition.ordering import Blocked, paper_rule, place
from nereus.transition.ownership import Exclusive, Key, circle, edges, endpoints_of
from nereus.transition.tasks import Problem, Task, stage_rank
from nereus.transition.ways import Draft, Surroundings, Way, drafts

MAX_SPARE = 2
"""Third places that are tried for a model-stage: they are alike but for the node."""


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
    where such waits then go in a circle, and with `fuse` off, every primitive moves on its own, or by a relay. Raises
    LayoutError if they still do.
    """
    change = Change(current, targets, states, endpoint_of, epoch, node_of or {}, exclusive, bucket_bytes=bucket_bytes)
    return next(change.transitions(fuse=fuse))


@dataclass(frozen=True, slots=True)
class Change:
    """What is to become of the EMUs of some model-stages; `transition_dag` says what the fields are."""

    current: Mapping[str, tuple[Emu, ...]]
    targets: Mapping[str, StagePlan]
    states: Mapping[str, StateSpec]
    endpoint_of: Mapping[DeviceId, EndpointId]
    epoch: int
    node_of: NodeOf
    exclusive: Exclusive
    bucket_bytes: int = BUCKET_BYTES
    standing: tuple[Emu, ...] = ()
    """EMUs of model-stages that do not change: no third place may be where one excludes."""
    quiesced: bool = False
    """Whether exclusive model-stages may share a device for a moment where there is no other order."""

    def transitions(self, *, fuse: bool = True) -> Iterator[Transition]:
        """Every way that has an order, best first. Raises LayoutError, with the circle named, if there is none."""
        first = self.draft(Way(unfused=frozenset() if fuse else frozenset(self.targets)))
        found = False
        for draft in drafts(first, self.draft, self._surroundings()):
            found = True
            yield self._transition(draft)
        if not found:
            last = self.draft(replace(first.way, unfused=frozenset(self.targets)))
            names = ", ".join(f"{_name(last.planned[stage][i], 0, i)} of {stage}" for stage, i in last.circle)
            raise LayoutError(f"each of these waits for the next, in a circle: {names}; change in two steps")

    def draft(self, way: Way) -> Draft:
        """The movements of a way."""
        planned: dict[str, tuple[Movement, ...]] = {}
        dags: dict[str, LocalDag] = {}
        for stage in sorted(self.targets, key=stage_rank):
            dags[stage], planned[stage] = self._movements(stage, way)

        def exclusive(a: str, b: str) -> bool:
            return frozenset((a, b)) not in way.sharing and self.exclusive(a, b)

        after = edges(planned, self.current, exclusive)
        return Draft(way, dags, planned, after, circle(after))

    def _movements(self, stage: str, way: Way) -> tuple[LocalDag, tuple[Movement, ...]]:
        current, state = self.current[stage], self.states[stage]
        relay = way.relays.get(stage)
        dag = local_dag(current, self.targets[stage], self.endpoint_of, self.epoch, self.node_of, relay)
        result = _result(dag, current, self.targets[stage], self.endpoint_of, self.epoch)
        if result == current:
            return dag, ()
        if result != dag.result:
            return dag, resharded(dag, current, result)
        if stage in way.unfused:
            return dag, unfused(dag)
        return dag, fused(dag, current, lambda movement: sites_read(movement, state, self.node_of))

    def _transition(self, draft: Draft) -> Transition:
        """A draft in the paper's order, compiled."""
        keys = list(draft.after)
        number = {key: index for index, key in enumerate(keys)}
        tasks = tuple(
            Task(stage, not draft.planned[stage][index].makes, (), frozenset(number[k] for k in draft.after[stage, index]))
            for stage, index in keys
        )
        order = place(Problem(tasks), (), paper_rule)
        assert not isinstance(order, Blocked)
        names = {keys[i]: _name(draft.planned[keys[i][0]][keys[i][1]], self.epoch, at) for at, i in enumerate(order)}

        def op(key: Key) -> Op:
            after = tuple(sorted(names[before] for before in draft.after[key]))
            movement, state = draft.planned[key[0]][key[1]], self.states[key[0]]
            return lower(movement, state, names[key], after, self.node_of, self.bucket_bytes)

        result = tuple(emu for stage in draft.planned for emu in self._results(stage, draft))
        return Transition(tuple(op(keys[index]) for index in order), result, draft.way.found)

    def _results(self, stage: str, draft: Draft) -> tuple[Emu, ...]:
        return _result(draft.dags[stage], self.current[stage], self.targets[stage], self.endpoint_of, self.epoch)

    def _surroundings(self) -> Surroundings:
        owned = {stage: endpoints_of(emus) for stage, emus in self.current.items()}
        for emu in self.standing:
            owned.setdefault(emu.stage, set()).update(emu.endpoints)
        wanted = dict(owned)
        for stage, plan in self.targets.items():
            wanted[stage] = {self.endpoint_of[device] for device in plan.devices}

        def count(where: Mapping[str, set[EndpointId]], stage: str, endpoints: Endpoints) -> int:
            others = [held for other, held in where.items() if other != stage and self.exclusive(stage, other)]
            return sum(endpoint in held for endpoint in endpoints for held in others)

        def spare(stage: str, size: int) -> list[Endpoints]:
            mine = owned[stage] | wanted[stage]
            pool = [
                e
                for e in sorted(self.endpoint_of.values(), key=lambda e: (self.node_of.get(e, 0), by_number(e)))
                if e not in mine and not count(owned, stage, (e,)) and not count(wanted, stage, (e,))
            ]
            return [tuple(pool[at : at + size]) for at in range(0, len(pool) - size + 1, size)][:MAX_SPARE]

        return Surroundings(owned=partial(count, owned), wanted=partial(count, wanted), spare=spare, quiesced=self.quiesced)


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
