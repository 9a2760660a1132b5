"""The transition DAG: the local DAGs of all changed model-stages in one safe order (paper, section 6).

Release before acquire: of the steps that are ready, Destroys come first. Ties go generation, inference, training.
"""

from __future__ import annotations

from collections.abc import Mapping

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.primitives import Destroy
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.local import LocalDag, local_dag
from nereus.transition.lowering import SameNode, lower
from nereus.transition.ops import Transition

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
) -> Transition:
    """The operations that turn the current EMUs of each changed model-stage into those of its target plan."""
    dags = {
        stage: local_dag(current[stage], targets[stage], endpoint_of, epoch, same_node)
        for stage in sorted(targets, key=stage_rank)
    }
    order = _dispatch_order(dags)
    names = {(stage, index): f"e{epoch}.{place}.{_verb(dags[stage], index)}" for place, (stage, index) in enumerate(order)}
    ops = tuple(
        lower(
            dags[stage].steps[index].primitive,
            states[stage],
            names[stage, index],
            tuple(sorted(names[stage, i] for i in dags[stage].steps[index].after)),
            same_node,
        )
        for stage, index in order
    )
    return Transition(ops, tuple(emu for dag in dags.values() for emu in dag.result))


def _dispatch_order(dags: Mapping[str, LocalDag]) -> list[tuple[str, int]]:
    """A topological order of all steps: release before acquire, then stage order, then the local default order."""
    waiting = [(stage, index) for stage, dag in dags.items() for index in range(len(dag.steps))]
    done: set[tuple[str, int]] = set()
    order: list[tuple[str, int]] = []
    while waiting:
        ready = [(s, i) for s, i in waiting if all((s, j) in done for j in dags[s].steps[i].after)]
        releases = [(s, i) for s, i in ready if isinstance(dags[s].steps[i].primitive, Destroy)]
        chosen = (releases or ready)[0]
        waiting.remove(chosen)
        done.add(chosen)
        order.append(chosen)
    return order


def _verb(dag: LocalDag, index: int) -> str:
    return type(dag.steps[index].primitive).__name__
