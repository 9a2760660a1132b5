"""What the last steps of a job teach: when efficiencies are fitted anew, and how long responses may become."""

from __future__ import annotations

from math import exp, log
from statistics import NormalDist, fmean, stdev

import pytest

from nereus.cost.operations import OpClass
from nereus.cost.priors import known_of
from nereus.emu.plan import Plan
from nereus.planner.experience import ENOUGH, EXPLAINED, FIRST_LOOK, LOOK_STEPS, Experience, Seen
from nereus.planner.outline_pricing import OutlinePricing
from nereus.planner.pricing import Lengths
from tests.planner.test_outline_pricing import LENGTHS, pricing, whole


def seen(*pairs: tuple[float, float]) -> Experience:
    """Steps of such (mean, longest) responses."""
    return Experience(steps=tuple(Seen(Plan(0, {}), Lengths(mean, longest), {}) for mean, longest in pairs))


def ran(found: OutlinePricing, factor: float, steps: int) -> OutlinePricing:
    """After so many steps that took `factor` times what an untaught pricing says."""
    (target,) = pricing().search(whole(), LENGTHS, 1)
    plan = Plan(0, target.stages)
    options = pricing()._options(plan, pricing()._pricer(LENGTHS)).values()
    told = {stage: factor * seconds for option in options for stage, seconds in option.seconds.items()}
    for _ in range(steps):
        found = found.learn(plan, LENGTHS, told, 0)
    return found


# --- efficiencies ------------------------------------------------------------------------------------------------------


def test_no_efficiency_is_told_before_the_first_look() -> None:
    assert ran(pricing(), 2.0, FIRST_LOOK - 1).efficiencies() == {}
    assert ran(pricing(), 2.0, FIRST_LOOK).efficiencies()


def test_what_is_measured_was_assumed_before() -> None:
    """A plan that is chosen before the first step is chosen by the figures that ship with the kind."""
    assumed = pricing().assumed()
    assert assumed.keys() >= ran(pricing(), 1.0, FIRST_LOOK).efficiencies().keys()
    for role in ("generation", "training"):
        prior = known_of({}, ("H100", role)).efficiencies.values
        assert assumed[f"compute/H100/{role}/gemm"] == prior[OpClass.GEMM].value
    assert ran(pricing(), 2.0, LOOK_STEPS).assumed() == assumed


def test_seconds_by_class_add_up_to_those_of_the_step() -> None:
    """Seconds are homogeneous in what the classes take (Euler), and nearly all of a step is of both kinds."""
    seen = ran(pricing(), 1.0, LOOK_STEPS)
    (step,) = seen.experience.steps[-1:]
    predicted = seen.holder_seconds(step.plan, step.lengths)
    assert sum(seen.spent().values()) == pytest.approx(sum(predicted.values()), rel=0.05)
    assert pricing().spent() == {}


def test_steps_that_the_last_fit_predicts_are_not_fitted_again() -> None:
    fitted = ran(pricing(), 1.1, 4 * LOOK_STEPS)
    assert ran(fitted, 1.1 * (1 + EXPLAINED / 4), LOOK_STEPS).experience.looked is fitted.experience.looked


def test_steps_that_take_longer_than_the_last_fit_says_lower_the_efficiencies() -> None:
    before = ran(pricing(), 2.0, 4 * LOOK_STEPS)
    after = ran(before, 3.0, LOOK_STEPS)
    compute = [name for name in before.efficiencies() if name.startswith("compute/")]
    logs = [log(after.efficiencies()[name] / before.efficiencies()[name]) for name in compute]
    assert fmean(logs) < 0


# --- lengths -----------------------------------------------------------------------------------------------------------


def test_lengths_before_any_step_are_those_that_were_declared() -> None:
    assert Experience().lengths(500.0, 4.0) == Lengths(500.0, 2000.0)


def test_generation_is_expected_to_wait_for_the_longest_response_that_is_usual() -> None:
    """The median of 2, 3 and 10 times the mean."""
    assert seen((100, 200), (100, 300), (100, 1000)).lengths(100.0, 4.0).usual == pytest.approx(300.0)


def test_few_steps_leave_memory_to_what_was_declared_or_seen() -> None:
    assert seen((100, 200)).lengths(100.0, 4.0).longest == 400
    assert seen((100, 500)).lengths(100.0, 4.0).longest == 500


def test_memory_is_predicted_at_the_99th_percentile_of_the_next_step() -> None:
    """Log-normal over the mean of the step before, from the pairs of steps."""
    tails = [2.0, 2.2, 1.9, 2.4, 2.1, 2.0, 2.3, 2.2, 2.1]
    assert len(tails) == ENOUGH + 1
    logs = [log(tail) for tail in tails[1:]]
    expected = 100 * exp(fmean(logs) + NormalDist().inv_cdf(0.99) * stdev(logs))
    found = seen(*[(100.0, 100 * tail) for tail in tails]).lengths(100.0, 4.0)
    assert expected <= found.longest < expected + 1


def test_responses_that_are_cut_off_are_predicted_at_where_they_are() -> None:
    """The mean goes up and down, the longest stays at the limit."""
    found = seen(*[(mean, 8192.0) for mean in (6000.0, 5000.0, 6400.0) * 4]).lengths(6400.0, 1.2)
    assert found.usual == 8192
    assert found.longest >= 8192


def test_responses_that_grow_steadily_have_a_longest_that_grows_with_them() -> None:
    """2 % a step, three times the mean: of the next step, 3.06 times that of this one."""
    means = [1000 * 1.02**step for step in range(2 * ENOUGH)]
    found = seen(*[(mean, 3 * mean) for mean in means]).lengths(means[-1], 4.0)
    assert found.longest == pytest.approx(3.06 * means[-1], abs=1.5)
    assert found.usual == pytest.approx(3 * means[-1])
