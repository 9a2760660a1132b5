"""`nereus simulate`: what an outline's job would have come to on a pool that changes, under one policy or several.

OUTLINE, trace, lengths, drift -> Inputs -> Scenario -> a run per policy -> Comparison -> tables | JSON | HTML
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from nereus.cli.simulated import show
from nereus.errors import UserError
from nereus.sim.comparison import Comparison
from nereus.sim.inputs import NOTICE_S, Inputs
from nereus.sim.outcome import Outcome
from nereus.sim.policies import POLICIES
from nereus.sim.policies import simulate as run_policy
from nereus.sim.report import report
from nereus.sim.scenario import Scenario
from nereus.spec.drift_file import read_drift
from nereus.spec.lengths import read_lengths
from nereus.spec.outline import is_outline, read_models, read_outline
from nereus.spec.policy import GAMMA
from nereus.spec.problems import unknown
from nereus.spec.reading import read_data
from nereus.spec.traces import read_availability


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command; None is left to the default."""

    availability: Path
    lengths: Path | None = None
    drift: Path | None = None
    policy: str = "nereus"
    gamma: float = GAMMA
    seed: int = 0
    steps: int | None = None
    notice_s: float = NOTICE_S
    html: Path | None = None
    as_json: bool = False


def simulate(path: Path, asked: Asked) -> None:
    """Run the scenario under each policy and show what came of it. Raises UserError for what a person can fix."""
    names = policy_names(asked.policy)
    inputs = _read(path, asked)
    if asked.html is not None:
        _check_writable(asked.html)
    scenario = inputs.scenario()
    comparison = Comparison(scenario=scenario, files=_files(path, asked), outcomes=_run(scenario, names))
    data = comparison.as_dict()
    if asked.html is not None:
        asked.html.write_text(report(data), encoding="utf-8")
    if asked.as_json:
        print(json.dumps(data))  # noqa: T201
        return
    show(Console(), inputs, data)
    if asked.html is not None:
        print(f"report: {asked.html}")  # noqa: T201


def policy_names(text: str) -> list[str]:
    """The policies that `--policy` names, in its order. Raises UserError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise UserError(f"--policy: {name!r} is not allowed; {unknown(name, POLICIES, 'policy')}")
    if len(set(names)) < len(names):
        raise UserError(f"--policy: {text!r} is not allowed; name each policy once")
    return names


def _read(path: Path, asked: Asked) -> Inputs:
    data = read_data(path, "outline")
    if not is_outline(data):
        if isinstance(data, Mapping) and "cluster" in data:
            fix = "write an outline of the job: its models by config.json, algorithm, workload and nodes (docs/outline.md)"
            raise UserError(f"{path}: it is a job file, and accelerators are simulated; {fix}")
        raise UserError(f"{path}: it must be an outline, with the fields name, algorithm, models, workload and nodes")
    outline = read_outline(data, path.absolute().parent)
    return Inputs(
        outline=outline,
        models=read_models(outline, path.absolute().parent),
        trace=read_availability(asked.availability),
        lengths=read_lengths(asked.lengths) if asked.lengths else (),
        drift=read_drift(asked.drift) if asked.drift else None,
        gamma=asked.gamma,
        seed=asked.seed,
        steps=asked.steps,
        notice_s=asked.notice_s,
    )


def _files(path: Path, asked: Asked) -> dict[str, str | None]:
    named = {"outline": path, "availability": asked.availability, "lengths": asked.lengths, "drift": asked.drift}
    return {name: str(file) if file else None for name, file in named.items()}


def _check_writable(path: Path) -> None:
    """Before a run of minutes, not after it."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--html: {path} is not allowed; it must be a file in a folder that is there")


def _run(scenario: Scenario, names: Sequence[str]) -> list[Outcome]:
    """One run after the other; on a terminal a line says which."""
    waiting = _waiting()
    outcomes = []
    for at, name in enumerate(names, 1):
        with waiting(f"{name}, run {at} of {len(names)}"):
            outcomes.append(run_policy(scenario, name))
    return outcomes


def _waiting() -> Callable[[str], AbstractContextManager[object]]:
    if not sys.stderr.isatty():
        return lambda text: nullcontext()
    return Console(stderr=True).status
