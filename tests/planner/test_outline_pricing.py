"""The pricing of an outline says of a plan what the search said when it found it, and learns what steps take."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nereus.emu.plan import Plan, StagePlan
from nereus.layout.layout import Layout
from nereus.planner.first_plan import first_pricings
from nereus.planner.outline_pricing import OutlinePricing, node_of
from nereus.planner.pricing import Devices, Lengths
from nereus.spec.outline import parse_outline, read_models
from nereus.spec.reading import read_data
from tests.planner.test_expert_plans import moe_planner
from tests.planner.test_outlined import planner

EXAMPLE = Path(__file__).parents[2] / "examples" / "outlines" / "llama-8b-ppo.yaml"
LENGTHS = Lengths(1024, 4096)


@cache
def pricing() -> OutlinePricing:
    outline = parse_outline(read_data(EXAMPLE, "outline"))
    return OutlinePricing(outline=outline, models=read_models(outline, EXAMPLE.parent))


def whole() -> Devices:
    places = node_of(pricing().outline)
    return Devices(tuple(places), places)


def test_price_of_a_plan_is_what_the_search_found_it_at() -> None:
    for target in pricing().search(whole(), LENGTHS, 3):
        plan = Plan(0, target.stages)
        assert pricing().step_seconds(plan, LENGTHS) == pytest.approx(target.seconds)
        assert max(pricing().peaks(plan, LENGTHS).values()) == pytest.approx(target.peak_bytes, abs=1)
        assert target.peak_bytes <= pricing().usable_bytes


def test_first_plan_is_looked_for_by_the_counts_alone_only_while_no_peak_was_measured() -> None:
    """Decision 032: 1.2 times what is counted, the 99th percentile of the public sweep; then what is counted."""
    assert [one.memory_scale for one in first_pricings(pricing())] == [1.2, 1.0]
    assert [one.memory_scale for one in first_pricings(replace(pricing(), memory_scale=1.05))] == [1.05]


def test_job_that_fits_by_the_counts_alone_has_a_first_plan() -> None:
    """On four devices of the least memory, to a GiB, on which a plan is counted to fit."""
    pool = Devices(whole().ids[:4], whole().node_of)

    def of(gib: int) -> OutlinePricing:
        (group,) = pricing().outline.nodes
        outline = pricing().outline.model_copy(update={"nodes": (group.model_copy(update={"memory": gib * 2**30}),)})
        return replace(pricing(), outline=outline)

    def is_counted_to_fit(gib: int) -> bool:
        return bool(replace(of(gib), memory_scale=1.0).search(pool, LENGTHS, 1))

    least = bisect_left(range(1024), True, lo=4, key=is_counted_to_fit)
    assert [len(one.search(pool, LENGTHS, 1)) for one in first_pricings(of(least))] == [0, 1]


def test_search_with_a_plan_keeps_its_layouts() -> None:
    best, second, *_ = pricing().search(whole(), LENGTHS, 2)
    (alike,) = pricing().search(whole(), LENGTHS, 1, like=Plan(0, second.stages))
    for name, stage in alike.stages.items():
        assert (stage.layout, stage.dp) == (second.stages[name].layout, second.stages[name].dp)
    assert best.seconds <= alike.seconds <= second.seconds


def test_search_takes_only_devices_of_the_pool_and_counts_them_by_position() -> None:
    places = node_of(pricing().outline)
    pool = Devices((0, 1, 2, 3, 12, 13, 14, 15), places)
    (target,) = pricing().search(pool, LENGTHS, 1)
    assert {device for stage in target.stages.values() for device in stage.devices} <= set(range(8))
    for stage in target.stages.values():
        for group in stage.groups:
            for first in range(0, len(group), stage.layout.tp):
                tp_group = group[first : first + stage.layout.tp]
                assert len({places[pool.ids[position]] for position in tp_group}) == 1


def test_steps_that_take_twice_as_long_teach_that_plans_take_about_twice_as_long() -> None:
    (target,) = pricing().search(whole(), LENGTHS, 1)
    plan = Plan(0, target.stages)
    before = pricing().step_seconds(plan, LENGTHS)
    options = pricing()._options(plan, pricing()._pricer(LENGTHS))
    told = {stage: 2 * seconds for option in options.values() for stage, seconds in option.seconds.items()}
    taught = pricing()
    for _ in range(10):
        taught = taught.learn(plan, LENGTHS, told, 0)
    assert taught.step_seconds(plan, LENGTHS) == pytest.approx(2 * before, rel=0.1)


def test_longest_response_grows_with_the_mean() -> None:
    work = pricing().outline.workload
    assert pricing().lengths(0.0, range(1, 2)) == Lengths(work.response_tokens, work.longest_tokens)
    assert pricing().lengths(2.0 * work.response_tokens, range(1, 2)).longest == 2 * work.longest_tokens


def on_two_nodes(**changes: Any) -> OutlinePricing:
    found = planner(**{"nodes": [{"kind": "H100", "memory": "24GiB", "devices": 4, "count": 2}], **changes})
    return OutlinePricing(outline=found.outline, models=found.models)


def assert_priced_as_found(found: OutlinePricing, pool: Devices) -> None:
    lengths = found.lengths(0.0, range(1))
    targets = found.search(pool, lengths, 3)
    assert targets
    for target in targets:
        plan = Plan(0, target.stages)
        assert found.step_seconds(plan, lengths) == pytest.approx(target.seconds, rel=1e-9)


def test_price_of_a_plan_has_the_links_that_its_devices_have() -> None:
    found = on_two_nodes()
    assert_priced_as_found(found, Devices(tuple(range(8)), node_of(found.outline)))
    lengths, (layout, dp) = found.lengths(0.0, range(1)), (Layout(2, 2), 1)

    def trained(devices: tuple[int, ...]) -> float:
        stage = StagePlan("actor_training", layout, dp, devices)
        return found.holder_seconds(Plan(0, {"actor_training": stage}), lengths)["actor_training"]

    assert trained((0, 1, 2, 3)) < trained((0, 1, 4, 5)) < trained((0, 4, 5, 6))


def test_price_of_tp_over_two_nodes_is_what_the_search_found_it_at() -> None:
    found = on_two_nodes(pins={"actor_training": {"tp": 8}})
    assert_priced_as_found(found, Devices(tuple(range(8)), node_of(found.outline)))


def test_pinned_devices_are_those_of_the_pool_and_none_without_them() -> None:
    found = on_two_nodes(pins={"actor_training": {"devices": [4, 5]}})
    lengths, places = found.lengths(0.0, range(1)), node_of(found.outline)
    (target,) = found.search(Devices((2, 3, 4, 5, 6, 7), places), lengths, 1)
    assert target.stages["actor_training"].devices == (2, 3)
    assert found.search(Devices((0, 1, 2, 3, 4, 6), places), lengths, 1) == ()


def test_job_that_adapts_has_plans_without_offloading_and_expert_parallelism() -> None:
    nodes = [{"kind": "H100", "memory": "40GiB", "devices": 4, "count": 2, "host_memory": "1TiB"}]
    for pin, plans in ({}, 1), ({"ep": 2}, 0), ({"offload": "optimizer"}, 0):
        asked = moe_planner(nodes=nodes, pins={"actor_training": pin})
        found = OutlinePricing(outline=asked.outline, models=asked.models)
        pool = Devices(tuple(range(8)), node_of(asked.outline))
        targets = found.search(pool, found.lengths(0.0, range(1)), 1)
        assert len(targets) == plans
        assert all(stage.layout.ep == 1 for target in targets for stage in target.stages.values())
