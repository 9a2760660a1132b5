"""`nereus plan`: which layout for how many devices, for a job of ours or for the outline of any job on accelerators.

JOB -> an outline -> plan_outline.py        JOB -> a job file -> plan_native.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nereus.errors import UserError
from nereus.spec.outline import is_outline
from nereus.spec.reading import read_data

OF_OUTLINES = (
    "explain",
    "lengths",
    "export",
    "efficiencies",
    "calibrate",
    "ran",
    "save_efficiencies",
    "suggest_probes",
)
"""Options that a job file does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command."""

    gpus: str | None = None
    top: int = 3
    explain: bool = False
    lengths: Path | None = None
    export: str | None = None
    efficiencies: Path | None = None
    calibrate: Path | None = None
    ran: Path | None = None
    save_efficiencies: Path | None = None
    suggest_probes: int = 0
    as_json: bool = False


def device_counts(gpus: str | None, most: int, whose: str) -> list[int]:
    """The numbers of devices to plan for, without one: `most`, of which `whose` says who has them. Raises UserError."""
    if gpus is None:
        return [most]
    texts = [text.strip() for text in gpus.split(",")]
    if not all(text.isascii() and text.isdecimal() for text in texts):
        raise UserError(f"--gpus: {gpus!r} is not allowed; give numbers of devices, such as 4,8")
    wrong = next((text for text in texts if len(text) > len(str(most)) or not 1 <= int(text) <= most), None)
    if wrong is not None:
        raise UserError(f"--gpus: {wrong} is not allowed; {whose} 1 to {most} devices")
    counts = [int(text) for text in texts]
    if len(set(counts)) < len(counts):
        raise UserError(f"--gpus: {gpus!r} is not allowed; give each number of devices once")
    return counts


def plan(path: Path, asked: Asked) -> None:
    """Plan what a file declares. Raises UserError for options that its kind does not have."""
    data = read_data(path, "job file or outline")
    if not isinstance(data, Mapping):
        seen = "it is empty" if data is None else f"it is a {type(data).__name__}"
        raise UserError(f"{path}: {seen}; it must have the fields of a job file or of an outline")
    if is_outline(data):
        from nereus.cli.plan_outline import plan_outline

        plan_outline(data, path, asked)
        return
    for option in OF_OUTLINES:
        if getattr(asked, option):
            raise UserError(f"--{option.replace('_', '-')}: it is for outlines, and {path} is a job file; leave it out")
    from nereus.cli.plan_native import plan_job

    plan_job(path, asked.gpus, asked.top, as_json=asked.as_json)
