"""Rates of links from what transitions took: recovered from a formula with known rates, though some were disturbed."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from nereus.transition.estimate import LinkRates, transition_seconds
from nereus.transition.learning import LearntLinks, Part, as_json, stretches
from nereus.transition.ops import Transition
from nereus.transition.traffic import new_groups
from tests.transition.test_estimate import MB, destroy, send

NODES = {f"d{device}.0": device // 4 for device in range(8)}

DECLARED = LinkRates(wire_bytes_s=0.4e9, near_bytes_s=0.8e9, copy_bytes_s=1.2e9, op_s=0.08, group_s=0.02, base_s=0.08)

FEW = 3
"""Transitions after which the estimate has to be good."""


def learnt(
    prior: LinkRates, story: list[tuple[Transition, float, float]], known: LearntLinks | None = None
) -> tuple[LearntLinks, list[float]]:
    """What is known after transitions of so many seconds around and in the movement, and the error of each estimate."""
    links, errors = known or LearntLinks.nothing(prior), list[float]()
    for transition, around_s, moving_s in story:
        groups = new_groups(transition)
        predicted = transition_seconds(transition, groups, links.rates, NODES)
        errors.append(abs(predicted / (around_s + moving_s) - 1))
        links = links.learn(stretches(transition, groups, links.rates, NODES, (around_s, moving_s)))
    return links, errors


def sent(megabytes: float, *, near: bool, copied: float = 0.0) -> Transition:
    """Two operations on one pair of devices, one after the other; the second copies something where it lands."""
    target = 1 if near else 5
    ops = (send("a", (0, target, megabytes)), send("b", (0, target, megabytes), (target, target, copied)))
    return Transition(ops if copied else ops[:1], ())


def by_hand(rates: LinkRates, megabytes: float, *, near: bool, copied: float) -> tuple[float, float]:
    """Seconds around and in the movement of `sent`: one group of two members, then each operation's own formula."""
    link = rates.near_bytes_s if near else rates.wire_bytes_s
    assert link is not None
    each = rates.op_s + megabytes * MB / link
    second = each + copied * MB / rates.copy_bytes_s if copied else 0.0
    return rates.base_s + 2 * rates.group_s, each + second


def story(rates: LinkRates, count: int, seed: int, noise: float, outliers: float) -> list[tuple[Transition, float, float]]:
    """Transitions over both links; some of them take four times as long, all of them a little more or less."""
    random, found = np.random.default_rng(seed), []
    for number in range(count):
        megabytes, near = float(random.uniform(50, 1000)), bool(number % 2)
        copied = float(random.uniform(50, 1000)) if number % 3 else 0.0
        factor = float(np.exp(random.normal(0, noise))) * (4.0 if random.random() < outliers else 1.0)
        around, moving = by_hand(rates, megabytes, near=near, copied=copied)
        found.append((sent(megabytes, near=near, copied=copied), around * factor, moving * factor))
    return found


def links_of(seed: int) -> LinkRates:
    """Any links, each rate up to four times better or worse than declared."""
    factor = np.exp(np.random.default_rng(seed).uniform(-np.log(4), np.log(4), 6))
    fields = ("wire_bytes_s", "near_bytes_s", "copy_bytes_s", "op_s", "group_s", "base_s")
    return replace(DECLARED, **{name: getattr(DECLARED, name) * by for name, by in zip(fields, factor, strict=True)})


@pytest.mark.parametrize("seed", range(8))
def test_estimate_is_near_from_the_fourth_transition_on_whatever_the_links_are(seed: int) -> None:
    """Issue 6: over transitions that move 50 MB or more, the median error is within 30 % after three of them."""
    _, errors = learnt(DECLARED, story(links_of(seed), 20, seed, noise=0.1, outliers=0.1))
    assert median(errors[FEW:]) <= 0.3


@pytest.mark.parametrize("seed", range(4))
def test_rates_of_each_link_are_recovered_though_a_tenth_was_disturbed(seed: int) -> None:
    true = replace(DECLARED, wire_bytes_s=1.6e9, near_bytes_s=0.5e9, copy_bytes_s=4e9, op_s=0.03, base_s=0.2)
    links, _ = learnt(DECLARED, story(true, 24, seed, noise=0.02, outliers=0.1))
    assert links.rates.wire_bytes_s == pytest.approx(true.wire_bytes_s, rel=0.3)
    assert links.rates.near_bytes_s == pytest.approx(true.near_bytes_s, rel=0.3)
    assert links.rates.base_s + 2 * links.rates.group_s == pytest.approx(true.base_s + 2 * true.group_s, rel=0.2)


def test_link_that_becomes_slow_is_followed() -> None:
    """A third of the rate, over six transitions: newer ones outweigh those before."""
    links, _ = learnt(DECLARED, story(DECLARED, 12, 0, noise=0.02, outliers=0.0))
    slow = replace(DECLARED, wire_bytes_s=DECLARED.wire_bytes_s / 3)
    links, errors = learnt(DECLARED, story(slow, 12, 1, noise=0.02, outliers=0.0), links)
    assert median(errors[6:]) < 0.15
    assert links.rates.wire_bytes_s == pytest.approx(slow.wire_bytes_s, rel=0.25)


def test_machine_that_all_devices_share_is_told_from_the_links_of_each() -> None:
    """A pair alone takes 0.05 s and 300 MB at 0.8 GB/s, as declared; four at once take 0.05 s and 1200 MB at 0.6 GB/s."""
    prior = replace(DECLARED, wire_bytes_s=0.8e9, op_s=0.05, host_bytes_s=2e9, host_copy_bytes_s=1e9)
    ops = tuple(send(f"op{pair}", (pair, pair + 4, 300)) for pair in range(4))
    alone = Transition(ops[:1], ()), 0.12, 0.05 + 0.3 / 0.8
    together = Transition(ops, ()), 0.12, 0.05 + 1.2 / 0.6
    links, errors = learnt(prior, [alone, together] * 6)
    assert max(errors[-2:]) < 0.2
    assert links.rates.host_bytes_s == pytest.approx(0.6e9, rel=0.25)
    assert links.rates.wire_bytes_s == pytest.approx(0.8e9, rel=0.25)


def test_uplink_is_learnt_where_it_is_what_takes_longest() -> None:
    """800 MB leave a node at 0.2 GB/s: four seconds; each device alone would need 0.8 s of its own link."""
    prior = replace(DECLARED, wire_bytes_s=1e9, uplink_bytes_s=1e9)
    ops = (send("a", *((pair, pair + 4, 200) for pair in range(4))),)
    links, errors = learnt(prior, [(Transition(ops, ()), 0.24, 0.08 + 0.8 / 0.2)] * 6)
    assert errors[-1] < 0.05
    assert links.rates.uplink_bytes_s == pytest.approx(0.2e9, rel=0.25)


def test_what_never_occurred_moves_with_all_others_only() -> None:
    """Everything takes twice as long as declared: so will a bucket of a stream, which was never seen."""
    twice = replace(
        DECLARED, wire_bytes_s=0.2e9, near_bytes_s=0.4e9, copy_bytes_s=0.6e9, op_s=0.16, group_s=0.04, base_s=0.16
    )
    links, _ = learnt(DECLARED, story(twice, 12, 0, noise=0.01, outliers=0.0))
    assert links.rates.bucket_s == pytest.approx(2 * DECLARED.bucket_s, rel=0.25)
    assert links.rates.uplink_bytes_s is None


def test_transition_that_moves_nothing_teaches_what_it_did() -> None:
    links, errors = learnt(DECLARED, [(Transition((destroy("a", 0), destroy("b", 1)), ()), 0.3, 0.02)] * 8)
    assert errors[-1] < 0.1
    assert links.rates.base_s > 2 * DECLARED.base_s
    assert links.rates.op_s < DECLARED.op_s


def test_saved_rates_are_those_that_a_transition_is_priced_with() -> None:
    saved = as_json(DECLARED)
    assert set(saved) == {part.value for part in Part} - {"release_s", "uplink_bytes_s", "host_bytes_s", "host_copy_bytes_s"}
    assert LinkRates(**saved) == DECLARED
