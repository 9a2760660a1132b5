"""Sums and counts over the news of one job: what the metrics are read from.

News -> count -> Tallies          the same news in the same order give the same tallies, whoever was restarted meanwhile
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.control.announced import Replanned
from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import (
    Answered,
    CanaryRead,
    Decision,
    DevicesChanged,
    Interrupted,
    News,
    TransitionRecord,
    Waited,
)
from nereus.control.report import StepReport
from nereus.emu.plan import DeviceId
from nereus.layout.catalog import EndpointId
from nereus.policy.admission import Code
from nereus.runtime.predictions import Predictions

ONE_NODE, SEVERAL_NODES = "one_node", "several_nodes"
"""Where the endpoints of an operation are."""


@dataclass(slots=True)
class Tallies:
    """Sums and counts since the start of the job."""

    news: int = 0
    steps: int = 0
    samples: int = 0
    step_s: float = 0.0
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds by model-stage, and of the weight sync."""
    stage_runs: Counter[str] = field(default_factory=Counter)
    late_s: float = 0.0
    declared_s: float = 0.0
    arrived: int = 0
    """Devices that came, those of the start included; one that is started anew comes again."""
    departed: int = 0
    """Devices that went on notice."""
    lost: int = 0
    """Devices whose endpoint ended without notice: it died, or all were ended to start from a checkpoint."""
    replans: int = 0
    """Answers of the planner."""
    replan_s: float = 0.0
    proposals: int = 0
    signals: Counter[str] = field(default_factory=Counter)
    """Replans by what asked for them; several signals can cross at once."""
    decisions: Counter[str] = field(default_factory=Counter)
    """By verdict code."""
    gain_s: float = 0.0
    """Predicted seconds per step that plans were to save which were admitted because they pay."""
    cost_s: float = 0.0
    """Predicted seconds of the transitions to them."""
    canaries: Counter[bool] = field(default_factory=Counter)
    """Watched transitions, by whether the plan before came back."""
    commands: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """By verb, and whether it was done."""
    transitions: int = 0
    primitives: Counter[str] = field(default_factory=Counter)
    interrupted: Counter[str] = field(default_factory=Counter)
    """Transitions that ended before their commit, by what they came to."""
    saves: int = 0
    """Checkpoints that were written."""
    failed_saves: int = 0
    save_s: float = 0.0
    """How long the loop stood for them, failed ones included."""
    saved_bytes: int = 0
    restores: int = 0
    """Returns to a checkpoint."""
    restore_s: float = 0.0
    repeated_steps: int = 0
    """Steps that were run again because of them."""
    waited_s: float = 0.0
    """How long the loop waited for devices, or for workers that started anew."""
    transition_s: float = 0.0
    stall_s: float = 0.0
    """How long the loop waited for transitions: moving, and proving that nothing was lost."""
    setup_s: float = 0.0
    bytes_moved: int = 0
    op_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of the operations of transitions, by where their endpoints are."""
    predictions: Predictions = field(default_factory=Predictions)
    _ready: Mapping[DeviceId, EndpointId] = field(default_factory=dict)
    _leaving: Mapping[DeviceId, int] = field(default_factory=dict)

    def count(self, news: News) -> None:
        """Take one news in."""
        self.news += 1
        self.predictions.compare(news)
        match news:
            case DevicesChanged():
                self._count_devices(news)
            case StepReport():
                self._count_step(news)
            case Replanned():
                self.replans += 1
                self.replan_s += news.seconds
                self.proposals += news.num_proposals
                self.signals.update(news.signals)
            case Decision():
                self._count_decision(news)
            case TransitionRecord():
                self._count_transition(news)
            case CanaryRead():
                self.canaries[news.returns] += 1
            case Answered():
                self.commands[news.verb, news.done] += 1
            case Interrupted():
                self.interrupted[news.end] += 1
            case Waited():
                self.waited_s += news.seconds
            case Saved():
                self._count_saved(news)
            case Restored():
                self.restores += 1
                self.restore_s += news.seconds
                self.repeated_steps += news.repeated_steps

    def _count_devices(self, news: DevicesChanged) -> None:
        """A device that another endpoint serves now has gone and come."""
        before, after = set(self._ready.items()), set(news.ready.items())
        gone = [device for device, _ in before - after]
        departed = sum(device in self._leaving for device in gone)
        self.arrived += len(after - before)
        self.departed += departed
        self.lost += len(gone) - departed
        self._ready, self._leaving = dict(news.ready), dict(news.leaving)

    def _count_step(self, report: StepReport) -> None:
        self.steps += 1
        self.samples += report.num_samples
        self.step_s += report.step_s
        self.late_s += report.late_s
        self.declared_s += report.declared_s
        for name, seconds in report.stage_s.items():
            self.stage_s[name] = self.stage_s.get(name, 0.0) + seconds
            self.stage_runs[name] += 1

    def _count_decision(self, decision: Decision) -> None:
        """Nothing comes of a dry run, so it counts as none."""
        if decision.is_dry_run:
            return
        verdict = decision.verdict
        self.decisions[str(verdict.code)] += 1
        if verdict.code is Code.ADMITTED:
            self.gain_s += verdict.delta_l_s
            self.cost_s += verdict.l_tran_s

    def _count_transition(self, record: TransitionRecord) -> None:
        outcome = record.outcome
        self.transitions += 1
        self.primitives.update(record.primitives)
        self.transition_s += outcome["seconds"]
        self.stall_s += outcome["quiesce_s"] + outcome["seconds"] + outcome["digest_s"]
        self.setup_s += outcome["setup_s"]
        self.bytes_moved += outcome["bytes_moved"]
        for op in outcome["ops"]:
            self.op_bytes[ONE_NODE if op["num_nodes"] == 1 else SEVERAL_NODES] += op["bytes"]

    def _count_saved(self, news: Saved) -> None:
        self.save_s += news.seconds
        if news.folder is None:
            self.failed_saves += 1
        else:
            self.saves += 1
            self.saved_bytes += news.num_bytes
