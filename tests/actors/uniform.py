"""Recorded rollouts that no model sampled: uniform tokens in the job's own order of prompts, so that nothing generates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from nereus.rl.ledger import SampleLedger
from nereus.rl.rollouts import Rollout, RolloutRecorder
from nereus.rl.task import make_task
from nereus.spec.job import Job

Lengths = Callable[[int, int], int]
"""Response tokens of a row (of the whole step) in a step, both from 1 and 0 on."""


def record_uniform(job: Job, folder: Path, length: Lengths) -> None:
    """Write all steps of a job. The old log-probabilities are about those of a model that knows nothing."""
    recorder, ledger = RolloutRecorder(folder), SampleLedger(job.task.num_prompts, job.seed)
    task, each = make_task(job.task.name, job.seed, job.task.num_prompts), job.workload.samples_per_prompt
    draw, dtype = torch.Generator().manual_seed(0), getattr(torch, job.dtype)
    uniform = -float(torch.log(torch.tensor(float(job.model.vocab_size))))
    for step in range(1, job.steps + 1):
        rows = []
        for place, sample in enumerate(ledger.lease(step, job.workload.prompts_per_step)):
            prompt = torch.tensor(task.prompt(sample.prompt).token_ids)
            for number, sample_id in enumerate(sample.responses(each)):
                tokens = length(step, place * each + number)
                response = torch.randint(job.model.vocab_size, (1, tokens), generator=draw)
                old = uniform + 0.05 * torch.randn(1, tokens, generator=draw, dtype=dtype)
                rows.append(
                    Rollout(
                        sample_ids=torch.tensor([sample_id]),
                        prompt_index=torch.tensor([sample.prompt]),
                        tokens=torch.cat([prompt[None], response], 1),
                        prompt_length=torch.tensor([len(prompt)]),
                        response_length=torch.tensor([tokens]),
                        old_logprobs=torch.cat([torch.zeros(1, len(prompt), dtype=dtype), old], 1),
                        rewards=torch.rand(1, generator=draw, dtype=torch.float64),
                    )
                )
        recorder.write(step, Rollout.concat(rows))
        ledger.commit(step)
