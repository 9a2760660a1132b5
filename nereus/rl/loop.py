"""The RL loop of the native job: GRPO, one step after the other, with a safe boundary in each.

    lease prompts -> generate (or replay) -> score with the reference -> accumulate -> apply
      -> boundary: report, wait for the release, maybe on another plan -> weight sync -> commit the lease

The boundary is where verl has it: the optimizer has stepped, generation does not have the new weights yet. The loop keeps no
handle over a boundary: each step runs on the units of the release before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nereus.control.report import Release, StepReport
from nereus.emu.unit import Emu
from nereus.errors import EndpointLost, PreconditionError
from nereus.layout.catalog import StateSpec
from nereus.layout.tensors import Kind
from nereus.rl.assemble import assemble
from nereus.rl.endpoint import Answer
from nereus.rl.fleet import Fleet, Work
from nereus.rl.grpo import group_advantages
from nereus.rl.ledger import SampleId, SampleLedger
from nereus.rl.programs import Request
from nereus.rl.rollouts import Rollout, RolloutRecorder
from nereus.rl.sources import RolloutSource
from nereus.rl.train import Accumulate, Apply, Prepared, Score
from nereus.spec.job import Job
from nereus.spec.stages import ACTOR_TRAINING, REFERENCE_INFERENCE

Boundary = Callable[[StepReport], Release]
"""Reports a step and blocks until the loop may go on."""

Recover = Callable[[EndpointLost], Release]
"""Tells of a death and blocks until there is a plan on what is left. Raises when there is none."""


Recall = Callable[[str], Mapping[str, Any]]
"""The loop's state in the checkpoint of a folder, see `RlLoop.state`."""


def _no_checkpoint(folder: str) -> Mapping[str, Any]:
    raise PreconditionError(f"this loop cannot go back to {folder}: it was made without `recall`")


@dataclass(slots=True)
class StepClock:
    """Wall seconds by model-stage, and how late the devices were, all together."""

    stage_s: dict[str, float] = field(default_factory=dict)
    late_s: float = 0.0
    declared_s: float = 0.0

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.stage_s[stage] = self.stage_s.get(stage, 0.0) + time.perf_counter() - began

    def note(self, answers: list[list[Answer]]) -> None:
        """Add up how late the devices were."""
        for answer in (answer for unit in answers for answer in unit):
            self.late_s += answer.pace.late_s
            self.declared_s += answer.pace.declared_s


@dataclass(slots=True)
class Progress:
    """What of a step is complete, so that only the rest is done again after a death."""

    rollout: Rollout | None = None
    reference: torch.Tensor | None = None
    prepared: list[Prepared] = field(default_factory=list)
    """One per applied update."""
    is_done: bool = False
    was_interrupted: bool = False
    """Whether it was begun more than once: its stage times then say nothing about a plan."""


class RlLoop:
    """Runs the steps of a job on a fleet; everything that decides where they run is on the other side of `boundary`."""

    def __init__(
        self,
        job: Job,
        fleet: Fleet,
        source: RolloutSource,
        ledger: SampleLedger,
        boundary: Boundary,
        recover: Recover,
        recorder: RolloutRecorder | None = None,
        recall: Recall = _no_checkpoint,
    ) -> None:
        self._job, self._fleet, self._source = job, fleet, source
        self._ledger, self._boundary, self._recover, self._recorder = ledger, boundary, recover, recorder
        self._recall = recall
        self._step_done, self._updates = 0, 0
        self._used: tuple[SampleId, ...] = ()
        self._release: Release | None = None

    def run(self, release: Release) -> None:
        """All steps of the job from the first release on. Raises EndpointLost only when the controller cannot recover.

        A release that follows a checkpoint, whenever it comes, leads back to the boundary that the checkpoint is of.
        """
        clock = StepClock()
        while True:
            if release.followed is not None:
                self.restore(self._recall(release.followed.folder))
                release, clock = replace(release, followed=None), StepClock()
            if self._step_done:
                release = self._sync(release, clock)
                if release.followed is not None:
                    continue
                self._ledger.commit(self._step_done, self._used)
            if self._step_done >= self._job.steps:
                break
            release = self._next(release, clock)
            clock = StepClock()
        self._release = release

    def _next(self, release: Release, clock: StepClock) -> Release:
        """The next step up to the release from its boundary, or from a checkpoint before it."""
        step, began, progress = self._step_done + 1, time.perf_counter(), Progress()
        while not progress.is_done:
            try:
                self._step(step, progress, release, clock)
                report = self._report(step, progress, clock, release, time.perf_counter() - began)
            except EndpointLost as lost:
                progress.was_interrupted = True
                progress.is_done = False
                release = self._recover(lost)
                if release.followed is not None:
                    return release
        self._step_done = step
        return self._boundary(report)

    def _sync(self, release: Release, clock: StepClock) -> Release:
        """Carry the new weights to generation; the release that it succeeded on, or one that follows a checkpoint."""
        while release.followed is None:
            try:
                with clock.timing("weight_sync"):
                    self._fleet.sync(release)
            except EndpointLost as lost:
                release = self._recover(lost)
            else:
                break
        return release

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the loop while it waits at a boundary: JSON-able, for `restore`."""
        return {
            "step": self._step_done,
            "updates": self._updates,
            "used": [list(sample) for sample in self._used],
            "ledger": self._ledger.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to the boundary at which `state` was taken. Raises UserError for another seed or number of prompts."""
        self._ledger.restore(state["ledger"])
        self._step_done, self._updates = state["step"], state["updates"]
        self._used = tuple(SampleId(*sample) for sample in state["used"])

    def weights(self, state: StateSpec) -> dict[str, torch.Tensor]:
        """The trained parameters after the last step, whole and by name."""
        assert self._release is not None, "no step has run"
        first = self._release.emus[ACTOR_TRAINING][0]
        return assemble(state, self._fleet.read(first, Kind.PARAMETER), Kind.PARAMETER)

    def _step(self, step: int, progress: Progress, release: Release, clock: StepClock) -> None:
        """What is left of a step: rollout, reference, and every update that is not applied yet."""
        if progress.rollout is None:
            progress.rollout = self._rollout(step, release, clock)
        if progress.reference is None:
            with clock.timing(REFERENCE_INFERENCE):
                micro_batch = release.plan.stages[REFERENCE_INFERENCE].micro_batch
                progress.reference = self._score(progress.rollout, release, micro_batch, clock)
        with clock.timing(ACTOR_TRAINING):
            for number, rows in enumerate(shares(len(progress.rollout.tokens), self._job.grpo.updates_per_step)):
                if number >= len(progress.prepared):
                    self._update(step, progress, rows, release, clock)
        progress.is_done = True

    def _rollout(self, step: int, release: Release, clock: StepClock) -> Rollout:
        prompts = self._ledger.lease(step, self._job.workload.prompts_per_step)
        with clock.timing("actor_generation"):
            rollout, answers = self._source.rollout(step, prompts, release)
        clock.note(answers)
        if self._recorder is not None:
            self._recorder.write(step, rollout)
        each = self._job.workload.samples_per_prompt
        self._used = self._ledger.used(rollout.sample_ids[::each] // each, rollout.prompt_index[::each])
        return rollout

    def _update(self, step: int, progress: Progress, rows: slice, release: Release, clock: StepClock) -> None:
        """One optimizer update on one minibatch of the step's rows."""
        job, rollout, reference = self._job, progress.rollout, progress.reference
        assert rollout is not None
        assert reference is not None
        emus, plan = release.emus[ACTOR_TRAINING], release.plan.stages[ACTOR_TRAINING]
        advantages = group_advantages(rollout.rewards, job.workload.samples_per_prompt, job.grpo.advantage_eps)
        advantages = advantages.to(reference.dtype)
        tokens = int(rollout.response_length[rows].sum())
        parts = [slice(rows.start + s.start, rows.start + s.stop) for s in shares(rows.stop - rows.start, len(emus))]
        requests: list[Request] = [
            Accumulate(
                rollout.rows(part.start, part.stop),
                advantages[part],
                reference[part],
                tokens,
                plan.micro_batch,
                job.grpo,
                job.workload.temperature,
                plan.recompute,
            )
            for part in parts
        ]
        found = [r for r in self._run(release, emus, requests, clock) if isinstance(r, Prepared)]
        update, position = self._updates + 1, (step - 1) * len(rollout.tokens) + rows.stop
        apply = Apply(update, step, position, found[0].grad_norm, job.optimizer)
        # From here on the update counts: apply has no collective, so whoever lives has applied it when others die.
        self._updates = update
        progress.prepared.append(_total(found))
        self._run(release, emus, [apply] * len(emus), clock)

    def _score(self, rollout: Rollout, release: Release, micro_batch: int, clock: StepClock) -> torch.Tensor:
        """Log-probabilities [n, T] of the responses under the reference."""
        emus, temperature = release.emus[REFERENCE_INFERENCE], self._job.workload.temperature
        parts = shares(len(rollout.tokens), len(emus))
        requests: list[Request] = [Score(rollout.rows(p.start, p.stop), micro_batch, temperature) for p in parts]
        scored = torch.zeros_like(rollout.old_logprobs, dtype=getattr(torch, self._job.dtype))
        for part, found in zip(parts, self._run(release, emus, requests, clock), strict=True):
            assert isinstance(found, torch.Tensor)
            scored[part, : found.shape[1]] = found
        return scored

    def _run(self, release: Release, emus: Sequence[Emu], requests: Sequence[Request], clock: StepClock) -> list[object]:
        """Run one request per unit; each unit's result."""
        work: list[Work] = list(zip(emus, requests, strict=True))
        answers = self._fleet.compute(release.epoch, work)
        clock.note(answers)
        return [next((a.result for a in unit if a.result is not None), None) for unit in answers]

    def _report(self, step: int, progress: Progress, clock: StepClock, release: Release, step_s: float) -> StepReport:
        rollout, prepared = progress.rollout, progress.prepared
        assert rollout is not None
        lengths = rollout.response_length
        return StepReport(
            step=step,
            reward=float(rollout.rewards.mean()),
            response_tokens_mean=float(lengths.double().mean()),
            response_tokens_max=int(lengths.max()),
            num_samples=len(lengths),
            loss=sum(p.loss for p in prepared) / len(prepared),
            kl=sum(p.kl for p in prepared) / int(lengths.sum()),
            grad_norm=prepared[-1].grad_norm,
            updates=self._updates,
            stage_s={} if progress.was_interrupted else dict(clock.stage_s),
            step_s=step_s + clock.stage_s.get("weight_sync", 0.0),
            late_s=clock.late_s,
            declared_s=clock.declared_s,
            peak_bytes={status.endpoint: status.peak_bytes for status in self._fleet.status(release)},
        )


def shares(count: int, parts: int) -> list[slice]:
    """`count` rows as consecutive slices, as even as possible."""
    return [slice(i * count // parts, (i + 1) * count // parts) for i in range(parts)]


def _total(found: list[Prepared]) -> Prepared:
    """The replicas' shares of one minibatch together."""
    return Prepared(
        loss=sum(p.loss for p in found),
        kl=sum(p.kl for p in found),
        clipped=sum(p.clipped for p in found),
        grad_norm=found[0].grad_norm,
    )
