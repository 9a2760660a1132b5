"""Runs a job on a private cluster and keeps what it came to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from actors.job import WEIGHTS_FILE
from actors.launch import Launched, launched
from nereus.control.checkpoint import Checkpoint
from nereus.control.effects import News, TransitionRecord
from nereus.control.report import StepReport
from nereus.runtime.summary import Summary
from nereus.spec.job import Job
from nereus.spec.loading import parse_job

GENERATION, REFERENCE, TRAINING = "actor_generation", "reference_inference", "actor_training"

TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 3,
    "dtype": "float64",
    "steps": 9,
    "model": {
        "hidden_size": 32,
        "num_layers": 6,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "ffn_size": 50,
        "vocab_size": 64,
    },
    "task": {"name": "letter_class", "num_prompts": 12},
    "workload": {
        "prompts_per_step": 4,
        "samples_per_prompt": 4,
        "max_prompt_tokens": 16,
        "response_cap": [{"step": 1, "tokens": 6}, {"step": 9, "tokens": 10}],
        "temperature": 0.9,
    },
    "optimizer": {"learning_rate": 5.0e-3, "weight_decay": 0.01, "max_grad_norm": 0.5},
    "grpo": {"updates_per_step": 2, "clip_ratio": 0.02, "kl_coef": 0.1},
    "cluster": {"nodes": 2, "devices_per_node": 4, "device": {"memory": "256MiB"}},
    "save_weights": True,
}
"""Everything uneven that may be: 6 layers over 4 pipeline ranks, an MLP of 50 over 4 TP ranks, prompts of 4 to 6 tokens,
epochs of 3 steps. The clip is narrow, so that the second update of a step meets it."""


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    job: Job
    summary: Summary
    events: Sequence[News]
    folder: Path

    @property
    def steps(self) -> list[StepReport]:
        return [event for event in self.events if isinstance(event, StepReport)]

    @property
    def transitions(self) -> list[TransitionRecord]:
        return [event for event in self.events if isinstance(event, TransitionRecord)]

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps]

    @property
    def grad_norms(self) -> list[float]:
        return [step.grad_norm for step in self.steps]

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / WEIGHTS_FILE)


def make_job(base: dict[str, Any], **sections: Any) -> Job:
    """A job from plain data; sections given as mappings are merged into those of `base`."""
    data = copy.deepcopy(base)
    for name, value in sections.items():
        merge = isinstance(value, dict) and isinstance(data.get(name), dict) and name != "plan"
        data[name] = {**data[name], **value} if merge else value
    return parse_job(data)


def stage(tp: int, pp: int, dp: int, devices: str, micro_batch: int = 1) -> dict[str, Any]:
    """The choice of one model-stage."""
    return {"tp": tp, "pp": pp, "dp": dp, "devices": devices, "micro_batch": micro_batch}


def run(
    job: Job,
    folder: Path,
    look: Callable[[Launched, News], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Run:
    """Run a job to its end on a private cluster; all its processes are gone afterwards. `look` is called with each news."""
    folder.mkdir(parents=True, exist_ok=True)
    events: list[News] = []
    with launched(job, folder, checkpoint=checkpoint) as launch:
        for news in launch.watch():
            events.append(news)
            if look is not None:
                look(launch, news)
        return Run(job, launch.summary(), events, folder)
