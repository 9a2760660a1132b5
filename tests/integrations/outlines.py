"""Outlines that exports are tested on: a small model on two nodes of four H100 of 40 GiB."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nereus.integrations.framework import Framework
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.posed import PlannedStep
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline, parse_outline
from tests.planner.test_outlined import SMALL

NODES = [{"kind": "H100", "count": 2, "devices": 4, "memory": "40GiB"}]
WORKLOAD = {
    "prompts_per_step": 32,
    "samples_per_prompt": 4,
    "prompt_tokens": 256,
    "response_tokens": 512,
    "updates_per_step": 2,
}
GRPO = {"algorithm": "grpo", "models": {"actor": "a.json", "reward": "rule"}}
"""What all frameworks run."""


def outline(**changes: Any) -> Outline:
    """PPO without anything that a framework could not run; what is named is changed."""
    declared = {"name": "o", "algorithm": "ppo", "models": {"actor": "a.json"}, "workload": WORKLOAD, "nodes": NODES}
    return parse_outline({**declared, **changes})


def shaped(**changes: Any) -> HfModel:
    """The small model with another shape."""
    return HfModel(replace(SMALL.decoder, **changes), "")


def planner(framework: Framework, asked: Outline, model: HfModel = SMALL) -> OutlinePlanner:
    """Under the framework's rules, all models alike."""
    models = dict.fromkeys({stage.model for stage in asked.workflow.stages}, model)
    return OutlinePlanner(outline=framework.run_by(asked), models=models, learnt={}, rules=framework.rules)


def planned(framework: Framework, asked: Outline, model: HfModel = SMALL) -> PlannedStep:
    """The best plan that the framework can run."""
    (plan,), _ = planner(framework, asked, model).best(1)
    return plan


def lines(framework: Framework, asked: Outline) -> dict[str, str]:
    """Keys and values of the best plan, as they would be pasted."""
    written = framework.overrides(asked, planned(framework, asked))
    if framework.name == "openrlhf":
        pairs = [line.removeprefix("--").partition(" ") for line in written]
    else:
        pairs = [line.partition("=") for line in written]
    return {key: value for key, _, value in pairs}
