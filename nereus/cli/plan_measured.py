"""The measuring side of `nereus plan OUTLINE`: what plans are priced with, and which runs to measure next.

    --efficiencies, --calibrate, --ran, --save-efficiencies -> Known        plan_calibrated.py
    --suggest-probes                                        -> runs         plan_probes.py

Most plans ask for neither, and do not wait for the code that does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nereus.cli.plan import Asked
from nereus.cost.accelerator import Learnt
from nereus.planner.outlined import OutlinePlanner
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline

if TYPE_CHECKING:
    from nereus.spec.ran import RanStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What plans are priced with."""

    learnt: Learnt = field(default_factory=dict)
    ran: Mapping[str, RanStage] = field(default_factory=dict)
    """The plan of the run that the log is of, by holder."""
    calibration: Mapping[str, Any] | None = None
    """What the log taught, as plain data; None without a log."""

    def as_dict(self) -> dict[str, Any]:
        """What the object of `--json` has of it."""
        return {} if self.calibration is None else {"calibration": self.calibration}


def what_is_known(asked: Asked, outline: Outline, models: Mapping[str, HfModel]) -> Known:
    """The efficiencies of the options' file, after their log; saved where they say so.

    Raises UserError for options that need each other, and for what the files should not have.
    """
    if not (asked.efficiencies or asked.calibrate or asked.ran or asked.save_efficiencies):
        return Known()
    from nereus.cli.plan_calibrated import learnt_of

    return learnt_of(asked, outline, models)


def show_known(console: Console, known: Known) -> None:
    """What the log taught, as tables; nothing without a log."""
    if known.calibration is not None:
        from nereus.cli.plan_calibrated import show_calibration

        show_calibration(console, known.calibration)


def probes_of(planner: OutlinePlanner, asked: Asked, known: Known) -> Sequence[Mapping[str, Any]]:
    """The runs to measure, as plain data, the most valuable first."""
    if not asked.suggest_probes:
        return ()
    from nereus.cli.plan_probes import suggested

    return suggested(planner, asked.suggest_probes, known.ran)


def show_probes(console: Console, probes: Sequence[Mapping[str, Any]]) -> None:
    """The same as a table."""
    from nereus.cli.plan_probes import show

    show(console, probes)
