"""What the cost model predicted beside what came: of transitions, and of the steps on the plan in force.

Replanned, admitted Decision -> predicted seconds per step of the plan in force -> StepReport -> error
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nereus.control.announced import Replanned
from nereus.control.checkpoint import Restored
from nereus.control.effects import Decision, Interrupted, News, TransitionRecord
from nereus.control.phases import End
from nereus.control.report import StepReport


@dataclass(slots=True)
class Compared:
    """Sums over pairs of a prediction and what came."""

    count: int = 0
    predicted_s: float = 0.0
    measured_s: float = 0.0
    error_s: float = 0.0
    """Of the absolute differences."""

    def add(self, predicted_s: float, measured_s: float) -> None:
        self.count += 1
        self.predicted_s += predicted_s
        self.measured_s += measured_s
        self.error_s += abs(predicted_s - measured_s)


@dataclass(slots=True)
class Predictions:
    """Predicted and measured, since the start of the job."""

    steps: Compared = field(default_factory=Compared)
    """Steps on plans of which a time was predicted; those without one, as after a scripted transition, are left out."""
    transitions: Compared = field(default_factory=Compared)
    step: int = 0
    """Completed steps."""
    replanned_step: int = 0
    """Completed steps at the last replan, when the plan in force was priced."""
    l_step_s: float | None = None
    """Predicted seconds per step of the plan in force; None where none was predicted."""
    _admitted_s: float | None = None
    """Of the plan that was admitted last, until a transition has led there."""

    def compare(self, news: News) -> None:
        """Take one news in."""
        match news:
            case StepReport():
                self.step = news.step
                if self.l_step_s is not None and news.stage_s:
                    self.steps.add(self.l_step_s, news.step_s)
            case Replanned():
                self.l_step_s, self.replanned_step = news.current_l_step_s, news.step
            case Decision() if news.verdict.is_admitted and not news.is_dry_run:
                self._admitted_s = news.proposal.l_step_s
            case TransitionRecord():
                self.transitions.add(news.outcome["l_tran_predicted_s"], news.outcome["seconds"])
                self.l_step_s, self._admitted_s = self._admitted_s, None
            case Restored():
                self.step, self.replanned_step = news.step, min(self.replanned_step, news.step)
                self.l_step_s, self._admitted_s = self._admitted_s, None
            case Interrupted() if news.end != End.ROLLED_BACK:
                self.l_step_s, self._admitted_s = None, None
