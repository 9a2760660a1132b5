"""Plans of MoE models: EP is a degree of its own inside the EMU, in devices, memory and places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nereus.planner.outlined import OutlinePlanner
from nereus.planner.rules import NOT_YET, Rules
from nereus.spec.decoder import Experts
from nereus.spec.hf_config import HfModel
from tests.planner.test_outlined import SMALL, best, planner

MOE = HfModel(
    replace(SMALL.decoder, family="mixtral", experts=Experts(count=8, active=2, ffn_size=5632, layers=frozenset(range(8)))),
    "",
)


def moe_planner(**changes: Any) -> OutlinePlanner:
    found = planner(
        **{"algorithm": "grpo", "nodes": [{"kind": "H100", "memory": "40GiB", "devices": 4, "count": 2}], **changes}
    )
    return replace(found, models=dict.fromkeys(found.models, MOE))


def test_experts_can_be_shared_out_in_every_degree_that_divides_them() -> None:
    degrees = {option.run.ep for table in moe_planner().options for option in table}
    assert degrees == {1, 2, 4, 8}
    assert {option.run.ep for table in planner().options for option in table} == {1}


def test_plan_has_devices_for_all_of_its_degrees() -> None:
    found = moe_planner(pins={"actor_training": {"ep": 4}, "actor_generation": {"ep": 2, "tp": 2}})
    plan = best(found)
    for holder, option in plan.options.items():
        run = option.run
        assert len(plan.devices[holder]) == run.tp * run.pp * run.ep * run.dp
    assert plan.options["actor_training"].run.ep == 4
    assert (plan.options["actor_generation"].run.ep, plan.options["actor_generation"].run.tp) == (2, 2)
    assert plan.seconds == pytest.approx(plan.overlap.seconds, rel=1e-9)
    assert " ep4 " in str(plan.options["actor_training"])


def test_expert_parallelism_beside_everything_else_loses_nothing() -> None:
    without = moe_planner(pins={holder: {"ep": 1} for holder in moe_planner().outline.workflow.holders})
    assert best(moe_planner()).seconds <= best(without).seconds


def test_all_to_alls_inside_a_node_need_a_quantum_that_keeps_them_there() -> None:
    table = moe_planner().options[1]
    alike = [o for o in table if (o.run.tp, o.run.pp, o.run.ep, o.run.dp, o.run.micro_batch) == (1, 1, 4, 2, 1)]
    seconds = {option.quantum: sum(option.seconds.values()) for option in alike}
    assert seconds[4] < seconds[1]


def test_what_runs_or_adapts_is_planned_without_expert_parallelism() -> None:
    found = replace(moe_planner(), rules=Rules(NOT_YET))
    assert {option.run.ep for table in found.priced for option in table} > {1}
    assert {option.run.ep for table in found.options for option in table} == {1}
