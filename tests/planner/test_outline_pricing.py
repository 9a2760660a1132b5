"""The pricing of an outline says of a plan what the search said when it found it, and learns what steps take."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from nereus.emu.plan import Plan
from nereus.planner.outline_pricing import OutlinePricing, node_of
from nereus.planner.pricing import Devices, Lengths
from nereus.spec.outline import parse_outline, read_models
from nereus.spec.reading import read_data

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
