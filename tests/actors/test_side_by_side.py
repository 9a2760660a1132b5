"""What goes on beside a movement in real workers: other movements on other devices, and computing on units that stay.

A member of an operation is asked, its peer is not: the operation is under way until the peer is asked as well. Nothing here
depends on how long anything takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

import pytest
import ray
import torch

from actors.cluster import first_seats, ground
from actors.completions import Completions
from actors.lanes import Lane, call
from actors.options import head_options
from actors.private_cluster import private_cluster
from actors.rendezvous import Rendezvous
from actors.worker_pool import WorkerPool
from nereus.control.events import Event, OpCompleted, OpFailed, Quiesced
from nereus.emu.unit import Emu, phi
from nereus.monitor.ray_nodes import head_node
from nereus.rl.describe import describe
from nereus.rl.generate import Generate, Generated, Sampling
from nereus.transition.dag import transition_dag
from nereus.transition.ops import Op, program_for
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, make_job, stage
from tests.builders import make_plan

pytestmark = pytest.mark.ray

JOB = make_job(
    TINY,
    cluster={"nodes": 1, "devices_per_node": 5, "device": {"memory": "256MiB"}},
    plan={TRAINING: stage(1, 1, 1, "0"), REFERENCE: stage(1, 1, 1, "2"), GENERATION: stage(1, 1, 1, "4")},
)
"""Training will be copied from device 0 to 1, the reference from 2 to 3; generation on 4 stays as it is."""

ENDPOINT_OF = {device: f"d{device}.0" for device in range(5)}

GENERATE = Generate(torch.arange(2), ((1, 2), (3,)), Sampling(3, 1.0, None, 0), 2)


@dataclass
class Crew:
    """Five workers that serve the job's units and have both Extends installed."""

    actors: dict[str, Any]
    generation: Emu
    extends: dict[str, Op]
    """By model-stage."""
    owners: tuple[object, ...]
    """Whoever ends its actors when it is forgotten."""
    ended: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By model-stage: when an operation began on a member and when all were heard of, on this process's clock."""

    def start(self, stage: str, endpoint: str) -> Any:
        """Ask one member of an Extend for its part."""
        return call(self.actors[endpoint], Lane.TRANSFER, "run_op", self.extends[stage].id)

    def end(self, stage: str, *parts: Any) -> None:
        """Wait for all parts of an Extend."""
        facts = ray.get(list(parts))
        now = time.monotonic()
        assert all(isinstance(fact, OpCompleted) for fact in facts)
        self.ended[stage] = now - max(fact.seconds for fact in facts), now


def is_under_way(*parts: Any) -> bool:
    return not ray.wait(list(parts), num_returns=1, timeout=0.5)[0]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with private_cluster(JOB.cluster):
        yield installed_crew()


def installed_crew() -> Crew:
    """Start, seed and bind the workers, and install what copies training and reference."""
    nodes, found, config = ray.nodes(), ground(JOB.cluster), describe(JOB)
    rendezvous = ray.remote(**head_options())(Rendezvous).remote()
    address = ray.get(rendezvous.start.remote(head_node(nodes)["NodeManagerAddress"]))
    seats = first_seats(JOB.cluster, found.nodes, range(JOB.cluster.num_devices))
    pool = WorkerPool(JOB, seats, found.takes, address, None, "side-by-side")
    actors = dict(pool.spawn(device) for device in range(5))
    ray.get([call(actor, Lane.CONTROL, "start") for actor in actors.values()])
    units = {name: phi(plan, ENDPOINT_OF, 0) for name, plan in config.first.items()}
    bound = tuple(emu for emus in units.values() for emu in emus)
    states = dict(config.states)
    ray.get([call(actor, Lane.TRANSFER, "seed", bound, states) for actor in actors.values()])
    ray.get([call(actor, Lane.CONTROL, "bind", 0, bound, frozenset()) for actor in actors.values()])
    targets = {
        TRAINING: make_plan("dp2", stage=TRAINING, devices=(0, 1)),
        REFERENCE: make_plan("dp2", stage=REFERENCE, devices=(2, 3)),
    }
    current = {name: units[name] for name in targets}
    transition = transition_dag(current, targets, states, ENDPOINT_OF, 1)
    programs = {endpoint: program_for(endpoint, 1, transition.ops, (), states) for endpoint in actors}
    ray.get([call(actors[endpoint], Lane.TRANSFER, "install", program) for endpoint, program in programs.items()])
    extends = {op.stage: op for op in transition.ops}
    return Crew(actors, units[GENERATION][0], extends, owners=(pool, rendezvous))


def test_primitives_on_disjoint_groups_are_under_way_at_once_and_units_that_stay_go_on(crew: Crew) -> None:
    """Paper, section 6.1: "Ready primitives run concurrently across GPU groups and streams"."""
    assert {name: op.primitives for name, op in crew.extends.items()} == {TRAINING: ("Extend",), REFERENCE: ("Extend",)}
    training, reference = crew.start(TRAINING, "d0.0"), crew.start(REFERENCE, "d2.0")
    assert is_under_way(training, reference)

    # Generation has no part in it: it computes while both are under way, and comes to rest by itself.
    answer = ray.get(call(crew.actors["d4.0"], Lane.COMPUTE, "compute", crew.generation.unit, 0, GENERATE))
    assert isinstance(answer.result, Generated)
    assert ray.get(call(crew.actors["d4.0"], Lane.COMPUTE, "quiesce", 1)) == Quiesced(endpoint="d4.0", epoch=1)
    assert is_under_way(training, reference)

    # The one that began last ends first.
    crew.end(REFERENCE, reference, crew.start(REFERENCE, "d3.0"))
    assert is_under_way(training)
    crew.end(TRAINING, training, crew.start(TRAINING, "d1.0"))
    (training_began, training_ended), (reference_began, reference_ended) = (crew.ended[n] for n in (TRAINING, REFERENCE))
    assert max(training_began, reference_began) < min(training_ended, reference_ended)


def test_worker_comes_to_rest_after_what_was_submitted_before(crew: Crew) -> None:
    """A generation that is in flight ends before its endpoint says that it has come to rest."""
    actor = crew.actors["d4.0"]
    computing = call(actor, Lane.COMPUTE, "compute", crew.generation.unit, 0, GENERATE)
    resting = call(actor, Lane.COMPUTE, "quiesce", 1)
    ray.get(resting)
    assert ray.wait([computing], timeout=0)[0], "it was still computing"


def test_call_that_is_not_answered_by_its_deadline_has_failed_and_others_are_told_as_ever(crew: Crew) -> None:
    told = Queue[Event]()
    completions = Completions(told.put)
    completions.start()
    endless = ray.remote(num_cpus=0)(lambda: time.sleep(600)).remote()
    completions.add(endless, "d0.0", "quiesce e1", deadline_s=0.2)
    assert told.get(timeout=60) == OpFailed(endpoint="d0.0", op="quiesce e1", error="it has not answered within 0.2 s")
    completions.add(call(crew.actors["d4.0"], Lane.COMPUTE, "quiesce", 2), "d4.0", "quiesce e2", deadline_s=60.0)
    assert told.get(timeout=60) == Quiesced(endpoint="d4.0", epoch=2)
    ray.cancel(endless, force=True)
