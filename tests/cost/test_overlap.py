"""The overlap graph against examples worked by hand, and against every order in which model-stages can be serialized."""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import combinations, permutations, product

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.overlap import BOUNDARY, Timings, overlap
from nereus.errors import LayoutError
from nereus.spec.workflow import Algorithm, ModelStage, WeightSync, Workflow, workflow

PPO = workflow(Algorithm.PPO)
SECONDS = {
    "actor_generation": 50.0,
    "reference_inference": 4.0,
    "reward_inference": 6.0,
    "critic_inference": 5.0,
    "actor_training": 20.0,
    "critic_training": 25.0,
}
SYNC = {("actor_training", "actor_generation"): 2.0}
TIMINGS = Timings(SECONDS, SYNC)
SYNC_NODE = "actor_training to actor_generation"

EVERYWHERE = dict.fromkeys(PPO.holders, range(8))
DISJOINT = {
    "actor_generation": {0, 1},
    "reference_inference": {2},
    "reward_inference": {3},
    "actor_training": {4, 5},
    "critic_training": {6, 7},
}


def sets(devices: Mapping[str, Set[int] | range]) -> dict[str, set[int]]:
    return {name: set(of) for name, of in devices.items()}


def test_model_stages_that_share_all_devices_run_one_after_the_other() -> None:
    found = overlap(PPO, sets(EVERYWHERE), TIMINGS)
    assert found.seconds == sum(SECONDS.values()) + 2
    assert set(found.path) == {*SECONDS, BOUNDARY, SYNC_NODE}
    assert {role: [len(together) for together in found.concurrent[role]] for role in found.concurrent} == {
        "generation": [1],
        "inference": [1, 1, 1],
        "training": [1, 1],
    }


def test_model_stages_on_disjoint_devices_run_beside_each_other() -> None:
    found = overlap(PPO, DISJOINT, TIMINGS)
    assert found.seconds == 50 + 6 + 25 + 2
    assert found.path == ("actor_generation", "reward_inference", "critic_training", BOUNDARY, SYNC_NODE)
    assert found.concurrent == {
        "generation": (frozenset({"actor_generation"}),),
        "inference": (frozenset({"reference_inference", "reward_inference", "critic_inference"}),),
        "training": (frozenset({"actor_training", "critic_training"}),),
    }


def test_one_shared_device_serializes_two_model_stages_and_leaves_the_third_beside_them() -> None:
    found = overlap(PPO, DISJOINT | {"reward_inference": {2, 3}}, TIMINGS)
    assert found.seconds == 50 + (4 + 6) + 25 + 2
    (serialized,) = [set(edge) for *edge, data in found.graph.edges(data=True) if "serialized" in data]
    assert serialized == {"reference_inference", "reward_inference"}
    assert set(found.concurrent["inference"]) == {
        frozenset({"critic_inference", "reference_inference"}),
        frozenset({"critic_inference", "reward_inference"}),
    }


def test_edges_lie_on_the_path_between_stages() -> None:
    edges = {("reward_inference", "critic_training"): 3.0, ("reference_inference", "actor_training"): 1.0}
    assert overlap(PPO, DISJOINT, Timings(SECONDS, SYNC, edges)).seconds == 50 + 6 + 3 + 25 + 2


def test_remax_generates_its_greedy_responses_and_the_sampled_ones_one_after_the_other() -> None:
    remax = workflow(Algorithm.REMAX)
    seconds = {name: value for name, value in SECONDS.items() if "critic" not in name} | {"baseline_generation": 30.0}
    found = overlap(remax, {name: DISJOINT[name] for name in remax.holders}, Timings(seconds, SYNC))
    assert found.seconds == (50 + 30) + 6 + 20 + 2
    assert found.concurrent["generation"] == (frozenset({"actor_generation"}), frozenset({"baseline_generation"}))


@pytest.mark.parametrize(("generation", "expected"), [(50.0, 50 + 2), (20.0, (6 + 25) + 2)])
def test_asynchronous_interval_is_the_longer_of_generation_and_the_rest_and_the_weight_sync(
    generation: float, expected: float
) -> None:
    found = overlap(
        workflow(Algorithm.PPO, asynchronous=True), DISJOINT, Timings(SECONDS | {"actor_generation": generation}, SYNC)
    )
    assert found.seconds == expected


def test_asynchronous_generation_is_in_the_sets_of_both_other_stages() -> None:
    devices = DISJOINT | {"reward_inference": {2}, "critic_training": {4, 5}}
    found = overlap(workflow(Algorithm.PPO, asynchronous=True), devices, TIMINGS)
    assert list(found.concurrent) == ["inference", "training"]
    assert all("actor_generation" in together for sets_of in found.concurrent.values() for together in sets_of)
    assert set(found.concurrent["training"]) == {
        frozenset({"actor_generation", "actor_training"}),
        frozenset({"actor_generation", "critic_training"}),
    }


def test_asynchronous_generation_on_the_devices_of_others_is_refused() -> None:
    with pytest.raises(LayoutError, match="actor_generation and actor_training run at the same time and share devices 1,4"):
        overlap(
            workflow(Algorithm.PPO, asynchronous=True), DISJOINT | {"actor_generation": {0, 1, 4}, "actor_training": {1, 4}},
            TIMINGS,
        )  # fmt: skip


def test_weight_syncs_to_and_from_disjoint_devices_run_beside_each_other() -> None:
    apart = workflow(Algorithm.PPO, critic_apart=True)
    syncs = SYNC | {("critic_training", "critic_inference"): 7.0}
    devices = DISJOINT | {"critic_inference": {3}}
    assert overlap(apart, devices, Timings(SECONDS, syncs)).seconds == 50 + (6 + 5) + 25 + 7
    assert overlap(apart, devices | {"critic_inference": {1}}, Timings(SECONDS, syncs)).seconds == 50 + 6 + 25 + (2 + 7)


FIVE = tuple(f"model{i}_inference" for i in range(5))
RING = Workflow(
    Algorithm.PPO,
    (*(ModelStage(name) for name in FIVE), ModelStage("actor_training", FIVE)),
    (WeightSync("actor_training", FIVE[0]),),
)


def test_ring_of_five_takes_longer_than_its_heaviest_pair() -> None:
    """Each shares a device with the next: the smallest graph whose best order is not its heaviest clique."""
    devices: dict[str, set[int]] = {name: {i, (i + 1) % 5} for i, name in enumerate(FIVE)} | {"actor_training": {9}}
    found = overlap(RING, devices, Timings(dict.fromkeys(FIVE, 1.0) | {"actor_training": 0.0}))
    assert found.seconds == 3


seconds = st.integers(0, 9).map(float)
some_devices = st.sets(st.integers(0, 4), min_size=1, max_size=3)
WORKFLOWS = [
    workflow(algorithm, critic_apart=apart) for algorithm in Algorithm for apart in (False, True)
]  # fmt: skip


@st.composite
def problems(draw: st.DrawFn, asynchronous: bool = False) -> tuple[Workflow, dict[str, set[int]], Timings]:
    found = draw(st.sampled_from(WORKFLOWS))
    found = workflow(found.algorithm, asynchronous=asynchronous, critic_apart="critic_inference" in found.holders)
    devices = {name: draw(some_devices) for name in found.holders}
    if asynchronous:
        devices["actor_generation"] = {7, 8}
    stages = {stage.name: draw(seconds) for stage in found.stages}
    syncs = {(sync.source, sync.target): draw(seconds) for sync in found.syncs}
    edges = {edge: draw(seconds) for edge in found.dependencies()}
    return found, devices, Timings(stages, syncs, edges)


def shortest_by_every_order(found: Workflow, devices: Mapping[str, Set[int]], timings: Timings) -> float:
    """The shortest schedule over all orders: each model-stage starts when what it waits for, and all that came before it on
    one of its devices, has ended."""
    waits = {stage.name: [e for e, later in found.dependencies() if later == stage.name] for stage in found.stages}
    used = {stage.name: devices[stage.holder] for stage in found.stages}
    best = float("inf")
    for order in permutations(waits):
        ends: dict[str, float] = {}
        for name in order:
            if not set(waits[name]) <= set(ends):
                break
            ready = [ends[earlier] + timings.edges.get((earlier, name), 0.0) for earlier in waits[name]]
            free = [end for other, end in ends.items() if used[other] & used[name]]
            ends[name] = max([0.0, *ready, *free]) + timings.stages[name]
        else:
            best = min(best, max(ends.values()))
    return best + shortest_syncs(found, used, timings)


def shortest_syncs(found: Workflow, used: Mapping[str, Set[int]], timings: Timings) -> float:
    """At most two: one after the other if they share a device."""
    times = [timings.syncs[sync.source, sync.target] for sync in found.syncs]
    places = [used[sync.source] | used[sync.target] for sync in found.syncs]
    return sum(times) if len(places) == 2 and places[0] & places[1] else max(times)


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_critical_path_is_the_shortest_over_all_orders(problem: tuple[Workflow, dict[str, set[int]], Timings]) -> None:
    assert overlap(*problem).seconds == shortest_by_every_order(*problem)


@settings(max_examples=30, deadline=None)
@given(problem=problems(asynchronous=True))
def test_asynchronous_interval_is_the_shortest_over_all_orders(
    problem: tuple[Workflow, dict[str, set[int]], Timings],
) -> None:
    assert overlap(*problem).seconds == shortest_by_every_order(*problem)


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_step_without_edges_is_the_sum_of_the_heaviest_cliques_of_its_stages(
    problem: tuple[Workflow, dict[str, set[int]], Timings],
) -> None:
    """Of up to four model-stages per stage, the longest chain that any order must have is a set of which all share."""
    found, devices, timings = problem
    used = {stage.name: devices[stage.holder] for stage in found.stages}
    total = shortest_syncs(found, used, timings)
    for role in ("generation", "inference", "training"):
        members = [stage.name for stage in found.stages if stage.role == role]
        cliques = [
            chosen
            for size in range(len(members) + 1)
            for chosen in combinations(members, size)
            if all(used[one] & used[other] for one, other in combinations(chosen, 2))
        ]
        total += max(sum(timings.stages[name] for name in clique) for clique in cliques)
    assert overlap(found, devices, Timings(timings.stages, timings.syncs)).seconds == total


@settings(max_examples=60, deadline=None)
@given(problem=problems(), asynchronous=st.just(False))
def test_graph_is_what_was_asked_for(problem: tuple[Workflow, dict[str, set[int]], Timings], asynchronous: bool) -> None:
    found, devices, _ = problem
    made = overlap(*problem)
    order = nx.transitive_closure_dag(made.graph)
    used = {stage.name: devices[stage.holder] for stage in found.stages}
    for one, other in product(used, used):
        if one < other and used[one] & used[other]:
            assert order.has_edge(one, other) or order.has_edge(other, one)
    for *edge, data in made.graph.edges(data=True):
        assert "serialized" not in data or edge[0] not in used or used[edge[0]] & used[edge[1]]
    steps = zip(made.path, made.path[1:], strict=False)
    nodes = sum(made.graph.nodes[node]["seconds"] for node in made.path)
    assert nodes + sum(made.graph.edges[step]["seconds"] for step in steps) == made.seconds


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_sets_are_disjoint_and_nothing_can_be_added(problem: tuple[Workflow, dict[str, set[int]], Timings]) -> None:
    found, devices, _ = problem
    used = {stage.name: devices[stage.holder] for stage in found.stages}
    for role, several in overlap(*problem).concurrent.items():
        members = {stage.name for stage in found.stages if stage.role == role}
        assert set().union(*several) == members
        for together in several:
            taken = [device for name in together for device in used[name]]
            assert len(taken) == len(set(taken))
            assert all(used[name] & set(taken) for name in members - together)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), data=st.data())
def test_renaming_devices_changes_nothing(
    problem: tuple[Workflow, dict[str, set[int]], Timings], data: st.DataObject
) -> None:
    found, devices, timings = problem
    names = data.draw(st.permutations(range(5)))
    renamed = {holder: {names[device] for device in of} for holder, of in devices.items()}
    one, other = overlap(found, devices, timings), overlap(found, renamed, timings)
    assert (one.seconds, one.concurrent) == (other.seconds, other.concurrent)
