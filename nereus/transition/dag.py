"""The transition DAG: the local DAGs of all changed model-stages in one safe order (paper, section 6).

Release before acquire: of the steps that are ready, Destroys come first. Ties go generation, inference, training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.primitives import Destroy, Primitive
from nereus.emu.unit import Emu
from nereus.errors import LayoutError
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.local import LocalDag, local_dag
from nereus.transition.lowering import SameNode, lower
from nereus.transition.ops import Transition

Exclusive = Callable[[str, str], bool]
"""Whether two model-stages may not own one device at the same time."""

Dags = Mapping[str, LocalDag]
StepKey = tuple[str, int]
"""A step of the local DAG of a model-stage."""
Edges = dict[StepKey, set[StepKey]]

STAGE_ORDER = ("generation", "inference", "training")
"""Ties between model-stages, by the suffix of their names (paper, section 6)."""


def stage_rank(stage: str) -> tuple[int, str]:
    """The place of a model-stage in the tie order."""
    suffix = stage.rpartition("_")[2]
    return (STAGE_ORDER.index(suffix) if suffix in STAGE_ORDER else len(STAGE_ORDER), stage)


def transition_dag(
    current: Mapping[str, tuple[Emu, ...]],
    targets: Mapping[str, StagePlan],
    states: Mapping[str, StateSpec],
    endpoint_of: Mapping[DeviceId, EndpointId],
    epoch: int,
    same_node: SameNode,
    exclusive: Exclusive = lambda a, b: False,
) -> Transition:
    """The operations that turn the current EMUs of each changed model-stage into those of its target plan.

    `exclusive(a, b)` says that two model-stages run concurrently and so never own a device together; an acquisition by one
    then waits for the Destroy by which the other gives the device up. Raises LayoutError if such waits go in a circle.
    """
    dags = {
        stage: local_dag(current[stage], targets[stage], endpoint_of, epoch, same_node)
        for stage in sorted(targets, key=stage_rank)
    }
    after = {
        (stage, index): {(stage, i) for i in dag.steps[index].after} for stage, dag in dags.items() for index in _range(dag)
    }
    for acquisition, releases in _resource_edges(dags, current, exclusive).items():
        after[acquisition] |= releases
    order = _dispatch_order(dags, after)
    names = {key: f"e{epoch}.{place}.{type(_primitive(dags, key)).__name__}" for place, key in enumerate(order)}
    ops = tuple(
        lower(_primitive(dags, key), states[key[0]], names[key], tuple(sorted(names[k] for k in after[key])), same_node)
        for key in order
    )
    return Transition(ops, tuple(emu for dag in dags.values() for emu in dag.result))


def _resource_edges(dags: Dags, current: Mapping[str, tuple[Emu, ...]], exclusive: Exclusive) -> Edges:
    """For each acquisition, the Destroys of exclusive model-stages that release the endpoints it needs."""
    edges: Edges = {}
    for stage, dag in dags.items():
        owned = {endpoint for emu in current[stage] for endpoint in emu.endpoints}
        for index in _range(dag):
            acquired = {e for emu in dag.steps[index].primitive.makes for e in emu.endpoints} - owned
            for other, released in dags.items():
                if other == stage or not acquired or not exclusive(stage, other):
                    continue
                for i in _range(released):
                    primitive = released.steps[i].primitive
                    if isinstance(primitive, Destroy) and acquired & set(primitive.target.endpoints):
                        edges.setdefault((stage, index), set()).add((other, i))
    return edges


def _dispatch_order(dags: Dags, after: Edges) -> list[StepKey]:
    """A topological order of all steps: release before acquire, then stage order, then the local default order."""
    waiting = [(stage, index) for stage, dag in dags.items() for index in _range(dag)]
    done: set[StepKey] = set()
    order: list[StepKey] = []
    while waiting:
        ready = [key for key in waiting if after[key] <= done]
        if not ready:
            names = ", ".join(f"{type(_primitive(dags, key)).__name__} of {key[0]}" for key in waiting)
            raise LayoutError(f"the devices that these wait for are released in a circle: {names}; change in two steps")
        releases = [key for key in ready if isinstance(_primitive(dags, key), Destroy)]
        chosen = (releases or ready)[0]
        waiting.remove(chosen)
        done.add(chosen)
        order.append(chosen)
    return order


def _primitive(dags: Dags, key: StepKey) -> Primitive:
    return dags[key[0]].steps[key[1]].primitive


def _range(dag: LocalDag) -> range:
    return range(len(dag.steps))
