"""Stage times of real RL runs, one step ahead: after 20 steps, predict each next one from its lengths, then learn."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from nereus.cost.efficiency import Efficiencies
from nereus.cost.execution import Execution
from nereus.cost.generation import Rollout, generation_workload, kv_room_bytes
from nereus.cost.layer import Architecture
from nereus.cost.training import inference_workload, training_workload
from nereus.cost.volume import Workload
from nereus.spec.decoder import Decoder
from nereus.spec.hardware import ACCELERATORS, Hardware

WARM_UP = 20
"""Steps before the first prediction."""

WINDOW = 40
"""Steps that are remembered: a drift is followed, a spike outvoted."""

SAMPLES = 64 * 8
"""Responses of one step: the runs' prompts times responses per prompt (INDEX.csv)."""

STAGES = {"gen": "timing_s_gen", "old_log_prob": "timing_s_old_log_prob", "update": "timing_s_update_actor"}

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


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one stage in one step, and the seconds that it took."""

    work: Workload
    seconds: float


def runs(folder: Path) -> Iterator[tuple[str, dict[str, list[Step]]]]:
    """The steps of each verl run by stage; a step that lacks a figure is left out."""
    gpus = {line["file"]: line["gpus"] for line in _lines(folder / "lengths" / "INDEX.csv")}
    for path in sorted((folder / "lengths").glob("verl_softgrpo_*.csv")):
        size = next(name for name in MODELS if f"_{name}_" in path.name)
        devices = re.match(r"\d+", gpus[path.name])
        if devices is None:
            continue
        stages: dict[str, list[Step]] = {stage: [] for stage in STAGES}
        for line in _lines(path):
            if any(not line[column] for column in ("response_length_mean", "response_length_max", *STAGES.values())):
                continue
            works = _works(Architecture(MODELS[size]), int(devices[0]), line)
            for stage, column in STAGES.items():
                stages[stage].append(Step(works[stage], float(line[column])))
        yield path.stem.removeprefix("verl_softgrpo_"), stages


def one_step_ahead(steps: list[Step], every: int = 1) -> list[float]:
    """Relative errors of the predictions, from the warm-up on; `every` judges one step in so many."""
    errors = []
    for now in range(WARM_UP, len(steps), every):
        seen = steps[max(0, now - WINDOW) : now]
        known = Efficiencies("H100").learn([step.work for step in seen], [step.seconds for step in seen])
        errors.append(abs(known.seconds(steps[now].work) / steps[now].seconds - 1))
    return errors


def judge(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Mean and median error by stage, over all runs."""
    by_stage: dict[str, list[float]] = {stage: [] for stage in STAGES}
    by_run: dict[str, dict[str, float]] = {}
    for name, stages in runs(folder):
        found = {stage: one_step_ahead(steps, 20 if quick else 5) for stage, steps in stages.items()}
        by_run[name] = {stage: round(mean(errors), 4) for stage, errors in found.items()}
        for stage, errors in found.items():
            by_stage[stage] += errors
    return {
        "runs": len(by_run),
        "mape_latency": {stage: round(mean(errors), 4) for stage, errors in by_stage.items()},
        "median_ape": {stage: round(median(errors), 4) for stage, errors in by_stage.items()},
        "by_run": by_run,
    }


def _works(model: Architecture, devices: int, line: dict[str, str]) -> dict[str, Workload]:
    prompt, response = float(line["prompt_length_mean"]), float(line["response_length_mean"])
    run = Execution(hardware=Hardware(ACCELERATORS["H100"]), dp=devices, sequences=SAMPLES, tokens=prompt + response)
    room = kv_room_bytes(run, model, 0.6 * run.hardware.accelerator.memory_bytes)
    rollout = Rollout(
        sequences=SAMPLES,
        prompt_tokens=prompt,
        response_tokens=response,
        longest_tokens=float(line["response_length_max"]),
        kv_bytes=room,
    )
    return {
        "gen": generation_workload(run, model, rollout),
        "old_log_prob": inference_workload(run, model),
        "update": training_workload(run, model),
    }


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
