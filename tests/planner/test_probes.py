"""Which runs to measure: rivals are whole plans, and the run that decides between them is the one brute force finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest

from nereus.cost.accelerator import AcceleratorModel, Learnt
from nereus.cost.fit import NOISE
from nereus.cost.operations import OpClass
from nereus.cost.priors import shipped
from nereus.cost.seconds import seconds_of
from nereus.planner.options import Option
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.posed import PlannedStep
from nereus.planner.probes import _Items, _longest, rivals, suggest
from nereus.planner.rules import Rules, Shared
from nereus.planner.value import LAYOUT_ERROR, Floats
from nereus.spec.plan_file import PlannedStage
from nereus.spec.ran import RanStage
from nereus.spec.stages import ROLES
from tests.planner.test_outlined import planner as planner_of

SURE = 1e-3
"""A spread that leaves nothing to learn."""


def unsure_of(role: str, **unsure: float) -> Learnt:
    """What ships with H100, sure of everything but these classes of one role."""
    known = shipped("H100")

    def of(one: str) -> AcceleratorModel:
        spreads = {op: unsure.get(op.value, SURE) if one == role else SURE for op in OpClass}
        values = {op: known.values[op]._replace(spread=spread) for op, spread in spreads.items()}
        return AcceleratorModel(replace(known, values=values))

    return {("H100", one): of(one) for one in ROLES}


def planner(learnt: Learnt, **changes: Any) -> OutlinePlanner:
    found = planner_of(**{"algorithm": "grpo", "models": {"actor": "a.json", "reward": "rule"}, **changes})
    return replace(found, learnt=learnt)


def test_rivals_are_the_best_plans_with_other_layouts_fastest_first() -> None:
    found = planner({})
    plans = rivals(found)
    assert plans[0].seconds == found.best(1)[0][0].seconds
    assert all(one.seconds <= other.seconds for one, other in pairwise(plans))
    for holder in found.outline.workflow.holders:
        assert len({plan.options[holder].layout for plan in plans}) > 1


@pytest.mark.parametrize(("algorithm", "asynchronous"), [("ppo", False), ("remax", True)])
def test_step_of_a_rival_is_its_overlap_graphs_at_other_times_too(algorithm: str, asynchronous: bool) -> None:
    """Times of all items drawn anew: the longest path as networkx finds it, edge by edge."""
    found = planner({}, algorithm=algorithm, asynchronous=asynchronous, models={"actor": "a.json"})
    plans, items = rivals(found), _Items(found, {})
    steps = items.steps(plans)
    drawn = np.random.default_rng(3).uniform(0.5, 2.0, (len(items.seconds), 4))
    seconds = np.array(items.seconds)[:, None] * drawn
    assert steps(np.array(items.seconds)[:, None])[:, 0] == pytest.approx([plan.seconds for plan in plans])
    for plan, row in zip(plans, steps(seconds), strict=True):
        assert row == pytest.approx([longest(found, items, plan, seconds[:, at]) for at in range(4)])


def test_path_is_left_out_only_where_another_is_as_long_whatever_the_items_take() -> None:
    """Two items; one of them and a sync of 5 s; the other and one of 0 s."""
    both, dear, cheap = (0.0, frozenset({1, 2})), (5.0, frozenset({1})), (0.0, frozenset({2}))
    assert set(_longest([cheap, dear, both])) == {both, dear}


def longest(found: OutlinePlanner, items: _Items, plan: PlannedStep, seconds: Floats) -> float:
    """The critical path of a plan with these times of items."""
    graph, flow = nx.DiGraph(), found.outline.workflow
    stages = {stage.name: plan.options[stage.holder] for stage in flow.stages}
    own = {n: seconds[items.at(n, stages[n])] if n in stages else d["seconds"] for n, d in plan.overlap.graph.nodes.items()}
    graph.add_weighted_edges_from(("start", node, own[node]) for node in own)
    graph.add_weighted_edges_from((a, b, d["seconds"] + own[b]) for a, b, d in plan.overlap.graph.edges(data=True))
    return float(nx.dag_longest_path_length(graph))


TP_SPREAD = 1.5
SHORT = {"prompts_per_step": 64, "prompt_tokens": 2048, "response_tokens": 16}
"""Responses so short that training decides."""
TIGHT = [{"kind": "H100", "memory": "12GiB"}]
"""So little memory that training takes TP, or computes its layers again: within a few percent of each other."""


def test_run_that_pins_the_only_unsure_class_is_the_one_that_brute_force_finds() -> None:
    """Only TP collectives of training are unsure, by a factor of four or so, and each layout by its own error."""
    found = planner(unsure_of("training", tp_node=TP_SPREAD), workload=SHORT, nodes=TIGHT)
    first, *_ = suggest(found, 2)
    assert (first.option.holder, first.option.run.tp) == ("actor_training", 2)
    assert [(pin.role, pin.op, pin.spread) for pin in first.pins] == [("training", OpClass.TP_NODE, TP_SPREAD)]
    saved = brute_force(found)
    assert max(saved, key=lambda name: saved[name]) == name_of(first.option)
    assert first.saves_s == pytest.approx(saved[name_of(first.option)], rel=0.2)


def test_suggestions_are_the_same_every_time() -> None:
    learnt = unsure_of("training", tp_node=TP_SPREAD)
    one, other = (suggest(planner(learnt, workload=SHORT, nodes=TIGHT), 3) for _ in range(2))
    assert [(name_of(p.option), p.saves_s, p.pins) for p in one] == [(name_of(p.option), p.saves_s, p.pins) for p in other]


def test_layout_that_was_run_is_not_suggested_where_no_class_is_unsure() -> None:
    """The fastest generation is worth most as long as it may have an error of its own."""
    found = planner(unsure_of("training"), workload={**SHORT, "response_tokens": 512})
    first, *_ = suggest(found, 1)
    assert first.pins == ()
    run = first.option.run
    choice = PlannedStage(tp=run.tp, pp=run.pp, dp=run.dp, micro_batch=run.micro_batch)
    ran = {first.option.holder: RanStage(nodes=found.outline.nodes[0], choice=choice)}
    assert name_of(first.option) not in [name_of(probe.option) for probe in suggest(found, 3, ran)]


def test_rivals_keep_the_rules_of_the_framework_that_is_to_run_them() -> None:
    """One TP degree for two holders, whichever it is."""
    holders = frozenset({"reference_inference", "actor_training"})
    same = Shared("reference and training have one TP", lambda option: option.run.tp, holders)
    found = replace(planner({}), rules=Rules(shared=(same,)))
    plans = rivals(found)
    assert len(plans) > 3
    assert {found.rules.broken(plan.options, found.pricer) for plan in plans} == {()}


def test_outline_with_no_plan_has_no_probes() -> None:
    assert suggest(planner({}, nodes=[{"kind": "H100", "memory": "2GiB"}]), 3) == ()


def name_of(option: Option) -> tuple[str, str]:
    return option.holder, str(option)


def brute_force(found: OutlinePlanner, draws: int = 20_000) -> dict[tuple[str, str], float]:
    """What timing each run saves: machines are drawn, the run is timed on each, and the rivals are compared by their mean
    over all machines on which it takes about as long. Nothing is linear or normal in it."""
    random = np.random.default_rng(11)
    slower = lognormal(random, TP_SPREAD, draws)
    plans = rivals(found)
    options = {name_of(option): option for plan in plans for option in plan.options.values()}
    taken = {
        name: machine_seconds(found, option, slower) * lognormal(random, LAYOUT_ERROR, draws)
        for name, option in options.items()
    }
    syncs = [plan.seconds - sum(sum(option.seconds.values()) for option in plan.options.values()) for plan in plans]
    assert min(syncs) > 0, "all model-stages share all devices, so that the step is their sum and the weight sync"
    steps = np.array(
        [sum(taken[name_of(o)] for o in plan.options.values()) + sync for plan, sync in zip(plans, syncs, strict=True)]
    )
    saved = {}
    for name, seconds in taken.items():
        order = np.argsort(np.log(seconds) + NOISE * random.standard_normal(draws))
        alike = np.array_split(order, 40)
        saved[name] = steps.mean(axis=1).min() - sum(steps[:, m].mean(axis=1).min() * len(m) for m in alike) / draws
    return saved


def lognormal(random: np.random.Generator, spread: float, draws: int) -> Floats:
    """Factors whose mean is 1."""
    found: Floats = np.exp(spread * random.standard_normal(draws) - spread**2 / 2)
    return found


def machine_seconds(found: OutlinePlanner, option: Option, slower: Floats) -> Floats:
    """Seconds of a holder on machines whose TP collectives take so much longer in training."""
    if option.holder != "actor_training":
        return np.full(len(slower), sum(option.seconds.values()))
    known = found.learnt["H100", "training"].efficiencies
    work = found.pricer.prediction(option.holder, option.kind, option.run).work
    grid = np.geomspace(slower.min(), slower.max(), 200)
    table = []
    for factor in grid:
        inverse = known.inverse.copy()
        inverse[OpClass.TP_NODE.position] *= factor
        table.append(seconds_of(work, inverse))
    return np.interp(slower, grid, table)
