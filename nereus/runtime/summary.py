"""The summary of a run: one JSON object, stable, the last line of `nereus run --json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import CanaryRead, Decision, Interrupted, News, Started, TransitionRecord, Waited
from nereus.control.report import StepReport
from nereus.emu.plan import Plan

NUM_LEARNING = 3
"""Transitions whose errors are shown apart: rates of links are declared before the first, and learnt from each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCounts:
    """How often samples were used, from the ledger's own bookkeeping."""

    seen: int
    repeated: int
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to."""

    steps: int
    reward_first: float
    reward_last: float
    transitions: list[dict[str, Any]]
    """step, primitives, bytes_moved, seconds, digest_equal, and what else was measured."""
    l_tran_error: dict[str, float | None]
    """|predicted / seconds - 1|, the median: `all` transitions, and those `after_three`; None where there is none."""
    interrupted: list[dict[str, Any]]
    """Transitions that ended before their commit: step, epoch, reason, end."""
    canaries: list[dict[str, Any]]
    """What watched transitions have saved: step, epoch, predicted_s, realised_s, returns."""
    waited_s: float
    """Seconds in which the loop waited for devices, since no plan did fit, or for workers that started anew."""
    saved: list[dict[str, Any]]
    """Checkpoints that were written, or could not be: step, reason, folder, num_bytes, seconds, error."""
    restored: list[dict[str, Any]]
    """Returns to a checkpoint: step, epoch, folder, reason, repeated_steps, num_bytes, seconds."""
    rejected: list[dict[str, Any]]
    """Candidates that were not carried out: reason, delta_l_s, l_tran_s, horizon_steps."""
    samples_seen: int
    """Prompts that were used."""
    samples_repeated: int
    samples_skipped: int
    peak_bytes: dict[str, int]
    """predicted by the memory model, and measured by the ledger: the worst device of all steps, transitions apart."""
    lateness: float
    """Late share of all paced time, see PaceReport."""
    final_plan: dict[str, dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarize(events: Sequence[News], samples: SampleCounts, predicted_peak: Callable[[Plan, int], int]) -> Summary:
    """Sum up the events of a finished run; `predicted_peak` is asked for each step's plan. ValueError without a step."""
    reports = _counted(events)
    changes = [event for event in events if isinstance(event, TransitionRecord)]
    if not reports:
        raise ValueError("a run without a step has no summary")
    declared = sum(report.declared_s for report in reports)
    return Summary(
        steps=len(reports),
        reward_first=reports[0].reward,
        reward_last=reports[-1].reward,
        transitions=[_transition(change) for change in changes],
        l_tran_error=l_tran_error([change.outcome for change in changes]),
        interrupted=[
            {"step": e.step, "epoch": e.epoch, "reason": e.reason, "end": e.end}
            for e in events
            if isinstance(e, Interrupted)
        ],
        canaries=[asdict(e) for e in events if isinstance(e, CanaryRead)],
        waited_s=sum(e.seconds for e in events if isinstance(e, Waited)),
        saved=[asdict(e) for e in events if isinstance(e, Saved)],
        restored=[_restored(e) for e in events if isinstance(e, Restored)],
        rejected=[_rejected(d) for d in events if isinstance(d, Decision) and not (d.verdict.is_admitted or d.is_dry_run)],
        samples_seen=samples.seen,
        samples_repeated=samples.repeated,
        samples_skipped=samples.skipped,
        peak_bytes={
            "predicted": max(predicted_peak(plan, step) for step, plan in _plan_of_step(events).items()),
            "measured": max(peak for report in reports for peak in report.peak_bytes.values()),
        },
        lateness=sum(report.late_s for report in reports) / declared if declared else 0.0,
        final_plan=plan_dict(
            next(e.plan for e in reversed(events) if isinstance(e, Started | TransitionRecord | Interrupted | Restored))
        ),
    )


def l_tran_error(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """How far the predicted seconds of transitions were from the measured ones, in their order: two medians."""
    errors = [abs(each["l_tran_predicted_s"] / each["seconds"] - 1) for each in outcomes if each["seconds"] > 0]
    late = errors[NUM_LEARNING:]
    return {"all": median(errors) if errors else None, "after_three": median(late) if late else None}


def plan_dict(plan: Plan) -> dict[str, dict[str, Any]]:
    """A plan as plain values."""
    return {
        name: {
            "tp": stage.layout.tp,
            "pp": stage.layout.pp,
            "dp": stage.dp,
            "devices": list(stage.devices),
            "micro_batch": stage.micro_batch,
            "recompute": stage.recompute,
        }
        for name, stage in plan.stages.items()
    }


def _counted(events: Sequence[News]) -> list[StepReport]:
    """The reports of the steps that count: those after a checkpoint that the job went back to are run again."""
    kept: list[StepReport] = []
    for event in events:
        if isinstance(event, StepReport):
            kept.append(event)
        elif isinstance(event, Restored):
            kept = [report for report in kept if report.step <= event.step]
    return kept


def _restored(event: Restored) -> dict[str, Any]:
    told = asdict(event)
    del told["plan"]
    return told


def _plan_of_step(events: Sequence[News]) -> dict[int, Plan]:
    """The plan that each step ran on."""
    plans: dict[int, Plan] = {}
    plan: Plan | None = None
    for event in events:
        if isinstance(event, StepReport):
            assert plan is not None, "a step before the start"
            plans[event.step] = plan
        elif isinstance(event, Started | TransitionRecord | Interrupted | Restored):
            plan = event.plan
    return plans


def _transition(change: TransitionRecord) -> dict[str, Any]:
    return {
        "step": change.step,
        "epoch": change.epoch,
        "trigger": change.trigger,
        "primitives": dict(change.primitives),
        "joined": list(change.joined),
        "left": list(change.left),
        **change.outcome,
    }


def _rejected(decision: Decision) -> dict[str, Any]:
    verdict = decision.verdict
    return {
        "step": decision.step,
        "code": str(verdict.code),
        "reason": verdict.reason,
        "delta_l_s": verdict.delta_l_s,
        "l_tran_s": verdict.l_tran_s,
        "horizon_steps": verdict.horizon_steps,
        "target": dict(decision.target),
    }
