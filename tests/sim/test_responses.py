"""Response lengths of a simulated run."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from statistics import fmean

import pytest

from nereus.errors import UserError
from nereus.sim.responses import GRID, Lengths, ResponseCurve, longest_over_mean

CURVE = ResponseCurve(((10, 500.0), (20, 1500.0)), samples=512)


@pytest.mark.parametrize(("step", "mean"), [(0, 500), (10, 500), (15, 1000), (20, 1500), (10**6, 1500)])
def test_means_lie_on_lines_between_steps_and_are_constant_outside(step: int, mean: float) -> None:
    assert CURVE.at(step).mean == mean


def test_lengths_are_cut_off_where_responses_are() -> None:
    assert ResponseCurve(CURVE.points, 512, most=1200).at(15) == Lengths(1000, 1200)
    assert ResponseCurve(CURVE.points, 512, most=1200).at(20) == Lengths(1200, 1200)


def test_rounded_lengths_are_near_and_few() -> None:
    cells = {Lengths(500 + step / 10, 4 * (500 + step / 10)).cell for step in range(75_000)}
    assert len(cells) < 2000
    for length in (1.0, 777.7, 31_000.0):
        assert Lengths(length, length).rounded.mean == pytest.approx(length, rel=0.51 * GRID)


def test_the_tail_is_that_of_measured_requests(data_dir: Path) -> None:
    with (data_dir / "request_lengths" / "azure_llm_2023_conv.csv").open(newline="") as file:
        tokens = [int(row["response_tokens"]) for row in csv.DictReader(file)]
    mean, chance = fmean(tokens), random.Random(0)
    for samples in (32, 128, 512, 2048):
        longest = fmean(max(chance.choices(tokens, k=samples)) for _ in range(100))
        assert longest_over_mean(samples) == pytest.approx(longest / mean, rel=0.18)


def test_one_response_is_its_own_longest() -> None:
    assert longest_over_mean(1) == 1.0


def test_a_curve_without_points_or_samples_is_refused() -> None:
    with pytest.raises(UserError, match="there is no point"):
        ResponseCurve((), 1)
    with pytest.raises(UserError, match="samples of a step: 0"):
        ResponseCurve(((0, 1.0),), 0)
