"""Stage times of real RL runs, one step ahead: after 20 steps, predict each next one from its lengths, then learn.

This is `nereus plan OUTLINE --calibrate LOG --ran PLAN`, walked through the whole log, from conservative guesses.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.efficiency import Efficiencies
from nereus.planner.calibration import Step, one_step_ahead, samples_of
from nereus.spec.decoder import Decoder
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import parse_outline
from nereus.spec.ran import parse_ran
from nereus.spec.run_log import ACTOR_INFERENCE, read_run
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, ROLES

PROMPTS, RESPONSES = 64, 8
"""Prompts of a step, and responses to each (INDEX.csv)."""

STAGES = {ACTOR_GENERATION: "gen", ACTOR_INFERENCE: "old_log_prob", ACTOR_TRAINING: "update"}
"""What is judged, and what the report calls it."""

GUESSES = {("H100", role): AcceleratorModel(Efficiencies("H100")) for role in ROLES}
"""What is known before the first step: nothing was measured."""

MODELS = {
    "1.5B": Decoder(
        hidden_size=1536, num_layers=28, num_heads=12, num_kv_heads=2, head_dim=128, ffn_size=8960, vocab_size=151_936
    ),
    "7B": Decoder(
        hidden_size=3584, num_layers=28, num_heads=28, num_kv_heads=4, head_dim=128, ffn_size=18_944, vocab_size=152_064
    ),
    "llama3B": Decoder(
        hidden_size=3072,
        num_layers=28,
        num_heads=24,
        num_kv_heads=8,
        head_dim=128,
        ffn_size=8192,
        vocab_size=128_256,
        tied=True,
    ),
}
"""From the published config.json of DeepSeek-R1-Distill-Qwen-1.5B and -7B and of Llama-3.2-3B-Instruct."""


def runs(folder: Path) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """The steps of each verl run."""
    gpus = {line["file"]: line["gpus"] for line in _lines(folder / "lengths" / "INDEX.csv")}
    for path in sorted((folder / "lengths").glob("verl_softgrpo_*.csv")):
        size = next(name for name in MODELS if f"_{name}_" in path.name)
        devices = re.match(r"\d+", gpus[path.name])
        if devices is None:
            continue
        outline = parse_outline(_declared(int(devices[0])))
        models = dict.fromkeys(("actor", "reference"), HfModel(MODELS[size], ""))
        plan = {holder: {"dp": int(devices[0])} for holder in outline.workflow.holders}
        ran = parse_ran(plan, path.name, outline, models)
        yield path.stem.removeprefix("verl_softgrpo_"), samples_of(outline, models, ran, read_run(path).steps)


def judge(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Mean and median error by stage, over all runs."""
    by_stage: dict[str, list[float]] = {name: [] for name in STAGES.values()}
    by_run: dict[str, dict[str, float]] = {}
    for run, steps in runs(folder):
        found = one_step_ahead(GUESSES, steps, len(steps) // (20 if quick else 5))
        by_run[run] = {name: round(mean(found[stage]), 4) for stage, name in STAGES.items()}
        for stage, name in STAGES.items():
            by_stage[name] += found[stage]
    return {
        "runs": len(by_run),
        "mape_latency": {stage: round(mean(errors), 4) for stage, errors in by_stage.items()},
        "median_ape": {stage: round(median(errors), 4) for stage, errors in by_stage.items()},
        "by_run": by_run,
    }


def _declared(devices: int) -> dict[str, Any]:
    """The outline of such a run; its lengths come from the log."""
    return {
        "name": "verl_softgrpo",
        "algorithm": "grpo",
        "models": {"actor": "config.json", "reward": "rule"},
        "workload": {
            "prompts_per_step": PROMPTS,
            "samples_per_prompt": RESPONSES,
            "prompt_tokens": 100,
            "response_tokens": 5000,
        },
        "nodes": [{"kind": "H100", "devices": devices}],
    }


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
