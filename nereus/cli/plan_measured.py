"""The measuring side of `nereus plan OUTLINE`: what was learnt from logs, and which runs to measure next.

--efficiencies FILE   --calibrate LOG --ran PLAN   ->  what plans are priced with  ->  --save-efficiencies FILE
--suggest-probes N                                 ->  runs to measure
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nereus.cli.plan import Asked
from nereus.cost.efficiency import Efficiency
from nereus.cost.saved import NAMES, Learnt, as_json, from_json
from nereus.errors import UserError
from nereus.planner.accelerators import Option, Pricer
from nereus.planner.calibration import Calibration, StageFit, calibrate
from nereus.planner.probes import Probe
from nereus.spec.efficiencies_file import read_efficiencies
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline
from nereus.spec.ran import RanStage, read_ran
from nereus.spec.run_log import read_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What plans are priced with."""

    learnt: Learnt
    calibration: Calibration | None = None
    """What the log taught, where there is one."""
    ran: Mapping[str, RanStage] = field(default_factory=dict)
    """The plan of the run that it is of."""


def what_is_known(asked: Asked, outline: Outline, models: Mapping[str, HfModel]) -> Known:
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
    calibration = calibrate(outline, models, ran, read_run(asked.calibrate), learnt)
    if asked.save_efficiencies:
        _save(asked.save_efficiencies, calibration.learnt)
    return Known(learnt=calibration.learnt, calibration=calibration, ran=ran)


def _save(path: Path, learnt: Learnt) -> None:
    try:
        path.write_text(json.dumps(as_json(learnt), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"--save-efficiencies: {path} cannot be written: {error}; name a file in a folder that exists"
        ) from None


def calibration_dict(known: Known) -> dict[str, Any]:
    """What the log taught, as plain data under `calibration`; nothing without a log."""
    if known.calibration is None:
        return {}
    found = known.calibration
    return {
        "calibration": {
            "steps": found.num_steps,
            "left_out": found.num_left_out,
            "stages": {
                fit.stage: {
                    "kind": fit.kind,
                    "steps": fit.num_steps,
                    "outvoted": fit.num_outvoted,
                    "error": fit.error,
                    "error_one_step_ahead": fit.one_step_ahead,
                    "judged": fit.num_judged,
                }
                for fit in found.stages
            },
            "efficiencies": [
                {"kind": kind, "role": role, "class": op, "before": before._asdict(), "after": after._asdict()}
                for kind, role, op, before, after in _changes(found)
            ],
        }
    }


def _changes(found: Calibration) -> list[tuple[str, str, str, Efficiency, Efficiency]]:
    """Kind, role, class, efficiency before and after, of each class that the log touched."""
    return [
        (*key, op.value, known, after)
        for key, model in found.before.items()
        for op, known in model.efficiencies.values.items()
        for after in [found.learnt[key].efficiencies.values[op]]
        if after.observations > known.observations
    ]


def show_calibration(console: Console, known: Known) -> None:
    """How well the log is met, and the efficiencies before and after it."""
    if known.calibration is None:
        return
    found = known.calibration
    steps = f"{found.num_steps} steps" + (f", {found.num_left_out} rows without one" if found.num_left_out else "")
    met = Table("", "on", "learnt from", "outvoted", "error", "one step ahead", title_justify="left")
    met.title = f"The log: {steps}"
    for fit in found.stages:
        met.add_row(fit.stage, fit.kind, f"{fit.num_steps} steps", str(fit.num_outvoted), f"{fit.error:.1%}", _ahead(fit))
    table = Table("", "class", "before", "learnt", "seen in", title="Efficiencies", title_justify="left")
    for kind, role, op, before, after in _changes(found):
        table.add_row(f"{kind} {role}", op, _shown(before), _shown(after), str(after.observations))
    console.print(met, table)


def _ahead(fit: StageFit) -> str:
    return "too few steps" if fit.one_step_ahead is None else f"{fit.one_step_ahead:.1%} of {fit.num_judged}"


def _shown(known: Efficiency) -> str:
    return f"{known.value:.2g} ±{known.spread:.0%}"


def option_dict(pricer: Pricer, option: Option) -> dict[str, Any]:
    """How a holder runs."""
    return {
        "kind": pricer.kind_name(option.kind),
        "tp": option.run.tp,
        "pp": option.run.pp,
        "dp": option.run.dp,
        "micro_batch": option.run.micro_batch,
        "recompute": option.recomputes,
        "zero1": option.run.zero1,
    }


def probe_dict(pricer: Pricer, probe: Probe) -> dict[str, Any]:
    """A run to measure."""
    return {
        "holder": probe.option.holder,
        **option_dict(pricer, probe.option),
        "num_devices": probe.option.num_devices,
        "stage_seconds": dict(probe.option.seconds),
        "stage_spread": dict(probe.spread),
        "saves_seconds": probe.saves_s,
        "pins": [{"kind": p.kind, "role": p.role, "class": p.op.value, "spread": p.spread} for p in probe.pins],
    }


def show_probes(console: Console, probes: Sequence[Probe]) -> None:
    """The runs to measure, the most valuable first."""
    if not probes:
        console.print("No single measurement would change the choice of the plan.", highlight=False)
        return
    title = "Runs whose times would change the choice most"
    table = Table("", "layout", "devices", "seconds", "may save, s per step", "pins", title=title, title_justify="left")
    for probe in probes:
        taken = "\n".join(f"{s:.2f} ±{probe.spread[stage]:.0%} {stage}" for stage, s in probe.option.seconds.items())
        pins = ", ".join(f"{pin.op} ±{pin.spread:.0%}" for pin in probe.pins) or "this layout alone"
        devices = str(probe.option.num_devices)
        table.add_row(probe.option.holder, str(probe.option), devices, taken, f"{probe.saves_s:.2g}", pins)
    console.print(table)
