"""Published training runs: each model left out of its own fit, a scale that was not fitted, probes at it, other hardware."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.costing.contest import calibrated, guess, least_model_parallelism
from benchmarks.costing.hidden import kept_by_degree, switched
from benchmarks.costing.measured import Row, gpt_a100, sweep_h100, topology_a100
from benchmarks.costing.score import Guess, score
from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.seconds import stack
from nereus.planner.value import LAYOUT_ERROR, Belief, choose

LARGE = "64"
"""Devices of the scale that is judged without having been fitted."""

PROBES = 3
"""Runs at the new scale that the model may ask for."""

RIVALS = 24
"""Configurations that the choice is among when they are asked for, the fastest ones."""

SEEN = 4
"""Rows of a group that other hardware is calibrated on."""

DRAWS = 5
"""Random draws of those rows, so that no lucky one decides."""

FEWEST = 10
"""Smaller groups are left out: with four rows seen there is little left to choose from."""


def judge_sweep(folder: Path) -> dict[str, Any]:
    """training_sweep_h100."""
    rows = sweep_h100(folder)
    models = sorted({row.group[0] for row in rows})
    large, small = [row for row in rows if row.group[1] == LARGE], [row for row in rows if row.group[1] != LARGE]
    left_out, rule = [], []
    for name in models:
        seen, own = _revealed([row for row in rows if row.group[0] != name], [row for row in rows if row.group[0] == name])
        model = calibrated("H100", seen)
        left_out += [guess(model, row) for row in own]
        rule += [least_model_parallelism(model, row) for row in own]
    known_small, known_large = _revealed(small, large)
    scaled = calibrated("H100", known_small)
    unseen = calibrated("H100")
    return {
        "each_model_left_out": score(left_out),
        "fitted_8_to_32_judged_at_64": score([guess(scaled, row) for row in known_large]),
        "with_three_probes": score(_probed(known_small, known_large)),
        "nothing_measured": score([guess(unseen, row) for row in rows]),
        "least_model_parallelism": score(rule, times=False),
    }


def _revealed(seen: Sequence[Row], judged: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Both with the sweep's hidden switch as the seen ones tell it."""
    kept = kept_by_degree(calibrated("H100"), seen)
    return switched(seen, kept), switched(judged, kept)


def _probed(small: Sequence[Row], large: Sequence[Row]) -> list[Guess]:
    """At the new scale, three runs of each model, chosen as `nereus plan --suggest-probes 3` chooses them among plans; what
    was measured is known, the rest is predicted anew."""
    guesses = []
    for group in sorted({row.group for row in large}):
        rows, model = [row for row in large if row.group == group], calibrated("H100", small)
        probes = {row.name: row for row in _chosen(model, rows)}
        model = calibrated("H100", [*small, *probes.values()])
        for row in rows:
            one, known = guess(model, row), probes.get(row.name)
            if known is not None:
                one = Guess(row, known.seconds or one.seconds, known.ran, known.peak_bytes or one.peak_bytes)
            guesses.append(one)
    return guesses


def _chosen(model: AcceleratorModel, rows: Sequence[Row]) -> list[Row]:
    """The configurations whose times would change the choice among those that fit the most."""
    predicted = [(row, model.training(row.run, row.model)) for row in rows]
    fitting = sorted(((row, found) for row, found in predicted if found.fits), key=lambda pair: pair[1].expected_s)[:RIVALS]
    works, known = [found.work for _, found in fitting], model.efficiencies
    stacked = stack(works)
    belief = Belief(
        np.array([found.expected_s for _, found in fitting]),
        np.array([known.sensitivity(work) for work in works]),
        np.full(len(fitting), LAYOUT_ERROR),
        lambda shifts: known.possible_seconds(stacked, shifts),
    )
    probes = choose(belief, [[at] for at in range(len(fitting))], lambda seconds: seconds, PROBES)
    return [fitting[at][0] for at, _ in probes]


def judge_other(folder: Path, *, quick: bool) -> dict[str, dict[str, Any]]:
    """Other hardware and frameworks: four rows of each group are seen, the rest is judged."""
    sources: dict[str, Callable[[], list[Row]]] = {
        "training_layouts_a100_multi_node": lambda: gpt_a100(folder, "training_layouts_a100_multi_node"),
        "training_gpt_a100_topology": lambda: topology_a100(folder),
        "training_layouts_a100_single_node": lambda: gpt_a100(folder, "training_layouts_a100_single_node"),
    }
    found = {}
    for name, rows in sources.items():
        every = 12 if quick and name.endswith("single_node") else 1
        found[name] = _after_four(rows(), every, draws=2 if quick or name.endswith("single_node") else DRAWS)
    return found


def _after_four(rows: Sequence[Row], every: int, draws: int) -> dict[str, Any]:
    """Scores over all groups and draws of the four rows, and the same for a model that saw nothing."""
    groups = sorted({row.group for row in rows})
    scores, rule, blind, regrets = [], [], [], {}
    for group in groups[::every]:
        own = sorted((row for row in rows if row.group == group), key=lambda row: row.name)
        if len(own) < FEWEST:
            continue
        for draw in range(draws):
            seen = random.Random(draw).sample([row for row in own if row.ran], SEEN)
            model = calibrated("A100-80GB", seen)
            rest = [row for row in own if not any(row is one for one in seen)]
            scores.append(score([guess(model, row) for row in rest]))
        rule.append(score([least_model_parallelism(calibrated("A100-80GB"), row) for row in own], times=False))
        blind.append(score([guess(calibrated("A100-80GB"), row) for row in own]))
        regrets[" ".join(group)] = median(one["median_regret"] for one in scores[-draws:])
    return {
        **_merged(scores, len(regrets)),
        "draws": draws,
        "regret_by_group": {name: round(value, 4) for name, value in regrets.items() if len(regrets) < 10},
        "least_model_parallelism": _merged(rule, len(regrets)),
        "nothing_measured": _merged(blind, len(regrets)),
    }


def _merged(scores: Sequence[dict[str, Any]], groups: int) -> dict[str, Any]:
    """The keys of the report from scores of one group each."""
    regrets = sorted(one["median_regret"] for one in scores)
    return {
        "groups": groups,
        "median_regret": round(median(regrets), 4),
        "p90_regret": regrets[min(len(regrets) - 1, round(0.9 * (len(regrets) - 1)))],
        "share_within_10pct_strict": round(mean(one["share_within_10pct_strict"] for one in scores), 4),
        "kendall_tau_median": round(median(one["kendall_tau_median"] for one in scores), 4),
        "mape_latency_within_2x": _mean(scores, "mape_latency_within_2x"),
        "mape_memory": _mean(scores, "mape_memory"),
        "infeasible_choices": sum(one["infeasible_choices"] for one in scores),
        "oom_accuracy": _mean(scores, "oom_accuracy"),
    }


def _mean(scores: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [one[key] for one in scores if one[key] is not None]
    return round(mean(values), 4) if values else None
