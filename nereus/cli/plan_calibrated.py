"""What `nereus plan OUTLINE` plans with: learnt efficiencies from a file, and from the log of a run.

--efficiencies FILE   --calibrate LOG --ran PLAN   ->  Known, which plans are priced with  ->  --save-efficiencies FILE
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from nereus.cli.plan import Asked
from nereus.cli.plan_measured import Known
from nereus.cli.tables import show_table
from nereus.cost.accelerator import Learnt
from nereus.cost.saved import NAMES, as_json, from_json
from nereus.errors import UserError
from nereus.planner.calibration import Calibration, calibrate
from nereus.spec.efficiencies_file import read_efficiencies
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline
from nereus.spec.ran import read_ran
from nereus.spec.run_log import read_run


def learnt_of(asked: Asked, outline: Outline, models: Mapping[str, HfModel]) -> Known:
    """The efficiencies of the options' file, after their log; saved where they say so.

    Raises UserError for options that need each other, and for what the files should not have.
    """
    learnt = from_json(read_efficiencies(asked.efficiencies, NAMES)) if asked.efficiencies else {}
    if asked.calibrate is None:
        for option, value in (("--ran", asked.ran), ("--save-efficiencies", asked.save_efficiencies)):
            if value:
                raise UserError(f"{option}: {value} is of no use without a log to learn from; name it with --calibrate")
        return Known(learnt=learnt)
    if asked.ran is None:
        wanted = 'a plan file such as {"actor_training": {"dp": 8, "zero1": true}}'
        raise UserError(f"--calibrate: {asked.calibrate} does not say which layout the run had; name {wanted} with --ran")
    ran = read_ran(asked.ran, outline, models)
    found = calibrate(outline, models, ran, read_run(asked.calibrate), learnt)
    if asked.save_efficiencies:
        _save(asked.save_efficiencies, found.learnt)
    return Known(learnt=found.learnt, ran=ran, calibration=_as_dict(found))


def _save(path: Path, learnt: Learnt) -> None:
    try:
        path.write_text(json.dumps(as_json(learnt), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"--save-efficiencies: {path} cannot be written: {error}; name a file in a folder that exists"
        ) from None


def _as_dict(found: Calibration) -> dict[str, Any]:
    changes = [
        {"kind": key[0], "role": key[1], "class": op.value, "before": known._asdict(), "after": after._asdict()}
        for key, model in found.before.items()
        for op, known in model.efficiencies.values.items()
        for after in [found.learnt[key].efficiencies.values[op]]
        if after.observations > known.observations
    ]
    stages = {
        fit.stage: {
            "kind": fit.kind,
            "steps": fit.num_steps,
            "outvoted": fit.num_outvoted,
            "error": fit.error,
            "error_one_step_ahead": fit.one_step_ahead,
            "judged": fit.num_judged,
        }
        for fit in found.stages
    }
    return {"steps": found.num_steps, "left_out": found.num_left_out, "stages": stages, "efficiencies": changes}


def show_calibration(console: Console, found: Mapping[str, Any]) -> None:
    """How well the log is met, and the efficiencies before and after it."""
    rest = f", {found['left_out']} rows without a stage time" if found["left_out"] else ""
    title = f"The log: {found['steps']} steps{rest}"
    met = []
    for stage, fit in found["stages"].items():
        ahead = "too few steps" if fit["error_one_step_ahead"] is None else f"{fit['error_one_step_ahead']:.1%}"
        met.append((stage, fit["kind"], f"{fit['steps']} steps", str(fit["outvoted"]), f"{fit['error']:.1%}", ahead))
    show_table(console, title, ("", "on", "learnt from", "outvoted", "error", "one step ahead"), met)
    changes = []
    for one in found["efficiencies"]:
        shown = (f"{known['value']:.2g} ±{known['spread']:.0%}" for known in (one["before"], one["after"]))
        changes.append((f"{one['kind']} {one['role']}", one["class"], *shown, str(one["after"]["observations"])))
    show_table(console, "Efficiencies", ("", "class", "before", "learnt", "seen in"), changes)
