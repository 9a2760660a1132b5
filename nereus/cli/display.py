"""What a run looks like: a live table on a terminal, plain lines elsewhere, nothing but the summary under --json."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nereus.control.announced import JobDescribed, Replanned
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
from nereus.emu.plan import Plan, spans
from nereus.runtime.summary import Summary
from nereus.spec.job import Job

SHOWN_STEPS = 12
"""Rows of the live table: the latest steps, so that it fits a terminal of 24 lines."""

MIB = 2**20


class Display:
    """Shows the events of one run as they come."""

    def __init__(self, job: Job, *, quiet: bool) -> None:
        self._job, self._quiet = job, quiet
        self._console = Console(stderr=quiet)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal and not quiet else None
        self._steps: list[StepReport] = []
        self._plan: Plan | None = None
        self._last_change = ""
        self._last_decision = ""
        self._last_pool = ""

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """One line that stays."""
        if not self._quiet:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(self, event: News) -> None:
        """Take an event in."""
        if isinstance(event, StepReport):
            self._steps.append(event)
        elif isinstance(event, DevicesChanged):
            self._last_pool = pool_line(event)
        elif isinstance(event, Decision):
            self._last_decision = decision_line(event)
        elif isinstance(event, Answered | CanaryRead | Waited | Saved):
            self._last_decision = line(event)
        elif not isinstance(event, JobDescribed | Replanned):
            self._plan = event.plan
        if isinstance(event, TransitionRecord):
            self._last_change = transition_line(event)
        if isinstance(event, Interrupted):
            self._last_change = interrupted_line(event)
        if isinstance(event, Restored):
            self._last_change = restored_line(event)
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif self._plan is not None:
            self.say(line(event))

    def finish(self, summary: Summary) -> None:
        """Show what the run came to."""
        for text in summary_lines(summary):
            self.say(text)

    def _table(self) -> Group:
        table = Table(title=f"{self._job.name}: step {len(self._steps)} of {self._job.steps}", title_justify="left")
        for heading in ("step", "reward", "length", "step s", "generate", "reference", "train", "peak MiB"):
            table.add_column(heading, justify="right")
        for report in self._steps[-SHOWN_STEPS:]:
            table.add_row(*step_cells(report))
        layouts = [Text(text) for text in plan_lines(self._plan)] if self._plan else []
        return Group(
            table, *layouts, Text(self._last_pool), Text(self._last_decision), Text(self._last_change, style="bold")
        )


def step_cells(report: StepReport) -> tuple[str, ...]:
    """The columns of a step."""
    stage = report.stage_s
    return (
        str(report.step),
        f"{report.reward:.3f}",
        f"{report.response_tokens_mean:.1f}",
        f"{report.step_s:.2f}",
        *(f"{stage.get(name, 0.0):.2f}" for name in ("actor_generation", "reference_inference", "actor_training")),
        f"{max(report.peak_bytes.values()) / MIB:.1f}",
    )


def line(event: News) -> str:
    """An event as one plain line, or several for a plan."""
    if isinstance(event, StepReport):
        step, reward, length, seconds, generate, reference, train, peak = step_cells(event)
        return (
            f"step {step:>3}  reward {reward}  length {length:>5}  step {seconds} s "
            f"(generate {generate}, reference {reference}, train {train})  peak {peak} MiB"
        )
    if isinstance(event, DevicesChanged):
        return pool_line(event)
    if isinstance(event, Decision):
        return decision_line(event)
    if isinstance(event, TransitionRecord):
        return "\n".join([transition_line(event), *plan_lines(event.plan)])
    if isinstance(event, Answered):
        return answered_line(event)
    if isinstance(event, CanaryRead):
        return canary_line(event)
    if isinstance(event, Waited):
        return f"waited {event.seconds:.1f} s after step {event.step}, for devices or workers"
    if isinstance(event, Saved):
        return saved_line(event)
    if isinstance(event, Restored):
        return "\n".join([restored_line(event), *plan_lines(event.plan)])
    if isinstance(event, Interrupted):
        return "\n".join([interrupted_line(event), *plan_lines(event.plan)])
    if isinstance(event, Replanned):
        return f"replan {event.cycle} after step {event.step}: {event.num_proposals} proposals in {event.seconds:.2f} s"
    if isinstance(event, JobDescribed):
        return f"{event.algorithm}, {event.mode}, {event.num_parameters} parameters"
    return "\n".join(plan_lines(event.plan))


def answered_line(event: Answered) -> str:
    """What an operator's request came to."""
    return f"{event.verb} after step {event.step}: {event.reason}"


def canary_line(event: CanaryRead) -> str:
    """What a transition has saved."""
    back = "; the plan before comes back" if event.returns else ""
    return (
        f"canary after step {event.step}: epoch {event.epoch} saves {event.realised_s:.2f} s a step, "
        f"{event.predicted_s:.2f} s were predicted{back}"
    )


def saved_line(event: Saved) -> str:
    """A checkpoint that was written, or could not be."""
    if event.folder is None:
        return f"checkpoint after step {event.step} failed: {event.error}"
    size = event.num_bytes / MIB
    return f"checkpoint after step {event.step}: {size:.2f} MiB in {event.seconds:.2f} s to {event.folder} [{event.reason}]"


def restored_line(event: Restored) -> str:
    """The job goes on from a checkpoint."""
    again = f"; {event.repeated_steps} steps are run again" if event.repeated_steps else ""
    size = event.num_bytes / MIB
    read = f"{size:.2f} MiB read in {event.seconds:.2f} s from {event.folder}"
    return f"back to step {event.step}: {read}{again} [{event.reason}]"


def interrupted_line(event: Interrupted) -> str:
    """A transition that ended before its commit."""
    return f"transition to epoch {event.epoch} after step {event.step} {event.end}: {event.reason}"


def plan_lines(plan: Plan) -> list[str]:
    """The layout of each model-stage."""
    return [f"  {name:<20} {stage}" for name, stage in plan.stages.items()]


def pool_line(event: DevicesChanged) -> str:
    """Who is there, and who leaves when."""
    notices = ", ".join(f"{device} leaves after step {step}" for device, step in sorted(event.leaving.items()))
    return f"pool after step {event.step}: devices {spans(tuple(event.ready))}{'; ' + notices if notices else ''}"


def decision_line(event: Decision) -> str:
    """What was decided on one candidate, and why, in one line."""
    target = "; ".join(f"{name} -> {plan}" for name, plan in event.target.items())
    code = f"dry run: {event.verdict.code}" if event.is_dry_run else event.verdict.code
    return f"{code} after step {event.step} [{'; '.join(event.triggers)}]: {target}: {event.verdict.reason}"


def transition_line(event: TransitionRecord) -> str:
    """What a transition did, in one line."""
    outcome = event.outcome
    primitives = ", ".join(f"{count} {name}" for name, count in event.primitives.items()) or "no primitive"
    pool = [f"joined {list(event.joined)}" if event.joined else "", f"left {list(event.left)}" if event.left else ""]
    changes = "; ".join([primitives, *(text for text in pool if text)])
    streamed = f" in {outcome['streams']} streams" if outcome["streams"] else ""
    return (
        f"transition to epoch {event.epoch} after step {event.step}: {changes}; "
        f"{outcome['bytes_moved'] / MIB:.2f} MiB moved in {outcome['seconds']:.3f} s "
        f"(set-up {outcome['setup_s']:.3f} s, predicted {outcome['l_tran_predicted_s']:.3f} s){streamed}; "
        f"{'digests equal' if outcome['digest_equal'] else 'DIGESTS DIFFER'}"
    )


def summary_lines(summary: Summary) -> list[str]:
    """The end of a run."""
    peak = summary.peak_bytes
    return [
        "",
        f"{summary.steps} steps, reward {summary.reward_first:.3f} -> {summary.reward_last:.3f}",
        f"{len(summary.transitions)} transitions, digests equal in "
        f"{sum(bool(t['digest_equal']) for t in summary.transitions)}; {len(summary.rejected)} candidates rejected",
        f"prompts: {summary.samples_seen} used, {summary.samples_repeated} repeated, {summary.samples_skipped} skipped",
        f"peak device memory: {peak['measured'] / MIB:.1f} MiB measured, {peak['predicted'] / MIB:.1f} MiB predicted",
        f"lateness of the emulated devices: {summary.lateness:.1%}",
        *transition_table(summary),
    ]


def transition_table(summary: Summary) -> list[str]:
    """What each transition was predicted to take, and what it took; nothing without one."""
    if summary.l_tran_error["all"] is None:
        return []
    rows = [
        f"{each['epoch']:>5}  {each['step']:>10}  {each['bytes_moved'] / MIB:>9.1f}  {each['l_tran_predicted_s']:>11.3f}  "
        f"{each['seconds']:>6.3f}  {each['l_tran_predicted_s'] / each['seconds'] - 1:>+5.0%}"
        for each in summary.transitions
        if each["seconds"] > 0
    ]
    late = summary.l_tran_error["after_three"]
    error = f"median error of the predicted seconds: {summary.l_tran_error['all']:.0%}"
    return [
        "",
        "epoch  after step  moved MiB  predicted s  took s  error",
        *rows,
        error if late is None else f"{error}, from the fourth transition on {late:.0%}",
    ]
