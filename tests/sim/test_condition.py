"""Conditions: which factor a device, and which a group's links have."""

from __future__ import annotations

import pytest

from nereus.sim.condition import USUAL, Condition
from nereus.spec.drift import Drift, Target, parse_target
from nereus.spec.hardware import LinkClass

NODE, NETWORK = LinkClass.NODE, LinkClass.NETWORK


def target(text: str) -> Target:
    found = parse_target(text)
    assert found is not None
    return found


SLOW = Condition.of(
    {target(name): factor for name, factor in [("3", 1.5), ("node:0", 2.0), ("link:node", 1.25), ("link:0-2", 3.0)]}
)


@pytest.mark.parametrize(("device", "node", "factor"), [(3, 0, 3.0), (2, 0, 2.0), (3, 1, 1.5), (9, 1, 1.0)])
def test_factors_of_a_device_and_its_node_multiply(device: int, node: int, factor: float) -> None:
    assert SLOW.compute(device, node) == factor


@pytest.mark.parametrize(
    ("link", "nodes", "factor"),
    [(NODE, (0,), 1.25), (NETWORK, (0, 1), 1.0), (NETWORK, (2, 1, 0), 3.0), (NETWORK, (0,), 1.0)],
)
def test_the_slowest_link_between_the_nodes_of_a_group_counts(
    link: LinkClass, nodes: tuple[int, ...], factor: float
) -> None:
    assert SLOW.link(link, nodes) == factor


def test_links_of_a_node_slow_the_groups_that_reach_it() -> None:
    slow = Condition.of({target("link:network:1"): 2.0, target("link:network"): 1.5})
    assert slow.link(NETWORK, (0, 1)) == 3.0
    assert slow.link(NETWORK, (0, 2)) == 1.5


def test_factors_of_one_are_no_condition() -> None:
    assert Condition.of({target("4"): 1.0}) == USUAL
    assert hash(Condition.of({target("4"): 1.0})) == hash(USUAL)


def test_stragglers_come_on_top() -> None:
    assert SLOW.slowed({3: 2.0, 9: 1.2}).compute(3, 1) == 3.0
    assert SLOW.slowed({3: 2.0, 9: 1.2}).compute(9, 1) == 1.2


def test_a_drift_is_a_condition_at_a_time() -> None:
    drift = Drift.of([(10.0, target("3"), 1.5), (20.0, target("3"), 1.0)])
    assert Condition.at(drift, 15.0).compute(3, 0) == 1.5
    assert Condition.at(drift, 5.0) == Condition.at(drift, 25.0) == USUAL
