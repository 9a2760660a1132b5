"""Where the responses of a step come from: sampled live by actor_generation, or read from a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from nereus.control.report import Release
from nereus.errors import JobFileError
from nereus.rl.endpoint import Answer
from nereus.rl.fleet import Fleet, Work
from nereus.rl.generate import Generate, Generated, Sampling
from nereus.rl.ledger import SampleId
from nereus.rl.rollouts import RecordedRollouts, Rollout
from nereus.rl.task import Prompt, Task
from nereus.spec.job import Job
from nereus.spec.stages import ACTOR_GENERATION


class RolloutSource(Protocol):
    """Makes one step's rollout for leased prompts."""

    def rollout(self, step: int, prompts: Sequence[SampleId], release: Release) -> tuple[Rollout, list[list[Answer]]]:
        """The samples of the step, prompt by prompt, and what computing them cost."""


class Live:
    """Samples responses on the generation EMUs of the release and grades them."""

    def __init__(self, job: Job, task: Task, eos: int | None, fleet: Fleet) -> None:
        self._job, self._task, self._eos, self._fleet = job, task, eos, fleet

    def rollout(self, step: int, prompts: Sequence[SampleId], release: Release) -> tuple[Rollout, list[list[Answer]]]:
        """Sample samples_per_prompt responses for each prompt, rows shared out over the EMUs."""
        workload = self._job.workload
        each = workload.samples_per_prompt
        asked = [self._task.prompt(sample.prompt) for sample in prompts]
        longest = max(len(prompt.token_ids) for prompt in asked)
        if longest > workload.max_prompt_tokens:
            raise JobFileError("workload.max_prompt_tokens", workload.max_prompt_tokens, f"a prompt has {longest} tokens")
        rows = [prompt for prompt in asked for _ in range(each)]
        sample_ids = torch.tensor([i for sample in prompts for i in sample.responses(each)], dtype=torch.int64)
        sampling = Sampling(workload.cap_at(step), workload.temperature, self._eos, self._job.seed)
        emus = release.emus[ACTOR_GENERATION]
        wave = release.plan.stages[ACTOR_GENERATION].micro_batch
        work: list[Work] = []
        for index, emu in enumerate(emus):
            low, high = index * len(rows) // len(emus), (index + 1) * len(rows) // len(emus)
            if low < high:
                ids = tuple(prompt.token_ids for prompt in rows[low:high])
                work.append((emu, Generate(sample_ids[low:high], ids, sampling, wave)))
        answers = self._fleet.compute(release.epoch, work)
        parts = [next(a.result for a in unit if isinstance(a.result, Generated)) for unit in answers]
        return self._graded(rows, sample_ids, parts), answers

    def _graded(self, rows: list[Prompt], sample_ids: torch.Tensor, parts: list[Generated]) -> Rollout:
        """Put prompts and responses together, padded to the longest row."""
        responses = [part.tokens[i, : part.lengths[i]] for part in parts for i in range(len(part.lengths))]
        log_probs = [part.log_probs[i, : part.lengths[i]] for part in parts for i in range(len(part.lengths))]
        longest = max(len(prompt.token_ids) + len(r) for prompt, r in zip(rows, responses, strict=True))
        tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
        old = torch.zeros(len(rows), longest, dtype=log_probs[0].dtype)
        for i, (prompt, response) in enumerate(zip(rows, responses, strict=True)):
            start, end = len(prompt.token_ids), len(prompt.token_ids) + len(response)
            tokens[i, :start] = torch.tensor(prompt.token_ids)
            tokens[i, start:end] = response
            old[i, start:end] = log_probs[i]
        rewards = [self._task.reward(prompt, r.tolist()) for prompt, r in zip(rows, responses, strict=True)]
        return Rollout(
            sample_ids=sample_ids,
            prompt_index=torch.tensor([prompt.index for prompt in rows]),
            tokens=tokens,
            prompt_length=torch.tensor([len(prompt.token_ids) for prompt in rows]),
            response_length=torch.tensor([len(response) for response in responses]),
            old_logprobs=old,
            rewards=torch.tensor(rewards, dtype=torch.float64),
        )


class Recorded:
    """Replays recorded rollouts, so that two runs train on exactly the same samples."""

    def __init__(self, rollouts: RecordedRollouts) -> None:
        self._rollouts = rollouts

    def rollout(self, step: int, prompts: Sequence[SampleId], release: Release) -> tuple[Rollout, list[list[Answer]]]:
        """The recorded rollout of the step."""
        return self._rollouts.step(step), []
