"""What a job looks like from outside, folded from its news one by one: the only source of every API answer and metric.

    News -> fold -> plan, decisions, transitions, devices, latest step (plain JSON values)     tallies (numbers)

Pure: no clock, no I/O. Units are spelled out in the names (`_seconds`, `_bytes`), and a number that JSON cannot carry, such
as the loss of a job that diverged, is null.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from nereus.control.announced import JobDescribed
from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import (
    Answered,
    CanaryRead,
    Decision,
    DevicesChanged,
    Interrupted,
    News,
    Started,
    TransitionRecord,
)
from nereus.control.report import StepReport
from nereus.emu.plan import DeviceId, Plan
from nereus.policy.admission import Verdict
from nereus.runtime.summary import plan_dict
from nereus.runtime.tallies import Tallies

View = dict[str, Any]
"""Plain values, ready for JSON."""


class Projection:
    """The state of one job as a watcher sees it. Not thread-safe: fold and read on one thread."""

    def __init__(self) -> None:
        self.described: JobDescribed | None = None
        self.plan: Plan | None = None
        self.report: StepReport | None = None
        self.tallies = Tallies()
        self.transition_peak_bytes: int | None = None
        """Of the last transition."""
        self.canary: View | None = None
        """What the last watched transition has saved."""
        self.is_paused = False
        """Whether an operator holds the loop at its boundaries."""
        self._answers: dict[str, View] = {}
        self._plan_since_step = 0
        self._decisions: list[View] = []
        self._commands: list[str | None] = []
        """The operator's command that each decision answers, if any."""
        self._transitions: list[View] = []
        self._pool: dict[DeviceId, View] = {}
        self._checkpoint: View | None = None

    def fold(self, news: News) -> None:
        """Take one news in."""
        self.tallies.count(news)
        match news:
            case JobDescribed():
                self.described = news
            case Started():
                self.plan = news.plan
            case DevicesChanged():
                self._fold_devices(news)
            case StepReport():
                self.report = news
            case Decision():
                self._fold_decision(news)
            case CanaryRead():
                self._fold_canary(news)
            case TransitionRecord():
                self._fold_transition(news)
            case Answered():
                self.is_paused = news.paused
                self._answers[news.command] = {"done": news.done, "reason": news.reason}
            case Interrupted():
                self.plan, self._plan_since_step = news.plan, news.step
            case Saved():
                self._fold_saved(news)
            case Restored():
                self._fold_restored(news)

    # --- views --------------------------------------------------------------------------------------------------------

    def plan_view(self) -> View | None:
        """The plan in force; None before the job has started."""
        if self.plan is None:
            return None
        stages = plan_dict(self.plan)
        return {"epoch": self.plan.epoch, "since_step": self._plan_since_step, "paused": self.is_paused, "stages": stages}

    def step_view(self) -> View | None:
        """The latest completed step; None before the first."""
        report = self.report
        if report is None:
            return None
        return {
            "step": report.step,
            "reward": number(report.reward),
            "response_tokens_mean": number(report.response_tokens_mean),
            "response_tokens_max": report.response_tokens_max,
            "num_samples": report.num_samples,
            "loss": number(report.loss),
            "kl": number(report.kl),
            "grad_norm": number(report.grad_norm),
            "updates": report.updates,
            "step_seconds": number(report.step_s),
            "stage_seconds": {name: number(seconds) for name, seconds in report.stage_s.items()},
            "peak_bytes": dict(report.peak_bytes),
        }

    def checkpoint_view(self) -> View | None:
        """The latest checkpoint, and the last return to one; None before the first."""
        return self._checkpoint

    def decisions(self, before: int | None, limit: int) -> list[View]:
        """Decisions below number `before`, newest first; they are numbered from 1."""
        return _newest(self._decisions, before, limit)

    @property
    def latest_decision(self) -> View | None:
        """The latest that could come to something: a dry run cannot."""
        return next((view for view in reversed(self._decisions) if not view["dry_run"]), None)

    def decided_for(self, command: str, limit: int) -> list[View]:
        """The decisions that answer an operator's request, in order."""
        asked = [v for v, c in zip(self._decisions, self._commands, strict=True) if c == command]
        return asked[:limit]

    def answer_to(self, command: str) -> View | None:
        """What an operator's command came to; None before it is answered."""
        return self._answers.get(command)

    def transitions(self, before: int | None, limit: int) -> list[View]:
        """Transitions below number `before`, newest first; they are numbered from 1."""
        return _newest(self._transitions, before, limit)

    def devices(self, after: DeviceId | None, limit: int) -> list[View]:
        """Devices above number `after`, in order, with the model-stages of the plan in force that use them."""
        stages = self.plan.stages if self.plan is not None else {}
        known = [device for device in sorted(self._pool) if after is None or device > after]
        return [
            {**self._pool[device], "model_stages": [name for name, plan in stages.items() if device in plan.devices]}
            for device in known[:limit]
        ]

    def devices_by_state(self) -> Counter[str]:
        """How many devices are ready, and how many of those that are there leave."""
        return Counter(view["state"] for view in self._pool.values())

    # --- folding ------------------------------------------------------------------------------------------------------

    def _fold_devices(self, news: DevicesChanged) -> None:
        """`since_step` stays as long as the device is in the same state, served by the same endpoint."""
        pool: dict[DeviceId, View] = {}
        for device, endpoint in news.ready.items():
            state = "leaving" if device in news.leaving else "ready"
            view = {
                "device": device,
                "endpoint": endpoint,
                "state": state,
                "since_step": news.step,
                "leaves_after_step": news.leaving.get(device),
            }
            old = self._pool.get(device)
            if old is not None and (old["endpoint"], old["state"]) == (endpoint, state):
                view["since_step"] = old["since_step"]
            pool[device] = view
        self._pool = pool

    def _fold_canary(self, news: CanaryRead) -> None:
        took = next((view["seconds"] for view in reversed(self._transitions) if view["epoch"] == news.epoch), None)
        self.canary = {
            "predicted_seconds": number(news.predicted_s),
            "realised_seconds": number(news.realised_s),
            "payback_steps": number(took / news.realised_s) if took is not None and news.realised_s > 0 else None,
        }

    def _fold_saved(self, news: Saved) -> None:
        if news.folder is None:
            return
        back = self._checkpoint["restored_after_step"] if self._checkpoint else None
        self._checkpoint = {
            "step": news.step,
            "folder": news.folder,
            "reason": news.reason,
            "size_bytes": news.num_bytes,
            "seconds": number(news.seconds),
            "restored_after_step": back,
        }

    def _fold_restored(self, news: Restored) -> None:
        self.plan, self._plan_since_step = news.plan, news.step
        known = self._checkpoint or {"step": news.step, "folder": news.folder, "reason": news.reason, "seconds": None}
        size = known.get("size_bytes", news.num_bytes)
        self._checkpoint = {**known, "size_bytes": size, "restored_after_step": news.step + news.repeated_steps}

    def _fold_decision(self, decision: Decision) -> None:
        proposal, verdict = decision.proposal, decision.verdict
        self._commands.append(decision.command)
        self._decisions.append(
            {
                "number": len(self._decisions) + 1,
                "step": decision.step,
                "cycle": decision.cycle,
                "triggers": list(decision.triggers),
                "code": str(verdict.code),
                "admitted": verdict.is_admitted,
                "dry_run": decision.is_dry_run,
                "reason": verdict.reason,
                "target": dict(decision.target),
                "stages": plan_dict(Plan(0, proposal.stages)),
                "l_step_seconds": number(proposal.l_step_s),
                "delta_l_seconds": number(verdict.delta_l_s),
                "l_tran_seconds": number(verdict.l_tran_s),
                "payback_steps": _payback(verdict),
                "horizon_steps": number(verdict.horizon_steps),
                "gamma": number(verdict.gamma),
                "peak_bytes": proposal.peak_bytes,
                "transition_peak_bytes": proposal.transition_peak_bytes,
                "moved_bytes": proposal.bytes_moved,
                "primitives": dict(proposal.primitives),
            }
        )

    def _fold_transition(self, record: TransitionRecord) -> None:
        outcome = record.outcome
        self.plan, self._plan_since_step = record.plan, record.step
        seconds, predicted, stall = (
            outcome["seconds"],
            outcome["l_tran_predicted_s"],
            outcome["quiesce_s"] + outcome["seconds"] + outcome["digest_s"],
        )
        self.transition_peak_bytes = outcome["peak_bytes"]
        self._transitions.append(
            {
                "number": len(self._transitions) + 1,
                "step": record.step,
                "epoch": record.epoch,
                "trigger": record.trigger,
                "primitives": dict(record.primitives),
                "joined": list(record.joined),
                "left": list(record.left),
                "stages": plan_dict(record.plan),
                "seconds": number(seconds),
                "predicted_seconds": number(predicted),
                "setup_seconds": number(outcome["setup_s"]),
                "digest_seconds": number(outcome["digest_s"]),
                "stall_seconds": number(stall),
                "moved_bytes": outcome["bytes_moved"],
                "peak_bytes": outcome["peak_bytes"],
                "groups_made": outcome["groups_made"],
                "groups_reused": outcome["groups_reused"],
                "streams": outcome["streams"],
                "digest_equal": outcome["digest_equal"],
            }
        )


def number(value: float | None) -> float | None:
    """A number that JSON can carry, or None."""
    return value if value is not None and math.isfinite(value) else None


def _payback(verdict: Verdict) -> float | None:
    """Steps until a transition has paid for itself; None if it never does."""
    return number(verdict.l_tran_s / verdict.delta_l_s) if verdict.delta_l_s > 0 else None


def _newest(views: list[View], before: int | None, limit: int) -> list[View]:
    end = len(views) if before is None else max(0, min(len(views), before - 1))
    return views[max(0, end - limit) : end][::-1]
