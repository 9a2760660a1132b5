"""A scenario that runs in a second: a model of two layers on a node of four accelerators, of which two come and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nereus.sim.inputs import Inputs
from nereus.spec.hf_config import HfModel, parse_hf_config
from nereus.spec.outline import parse_outline
from nereus.spec.traces import AvailabilityTrace

MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}

OUTLINE = {
    "name": "tiny",
    "algorithm": "grpo",
    "models": {"actor": "model.json", "reward": "rule"},
    "workload": {"prompts_per_step": 64, "samples_per_prompt": 8, "prompt_tokens": 128, "response_tokens": 2048},
    "nodes": [{"kind": "H100", "count": 1, "devices": 4, "price_per_hour": 2.0}],
    "micro_batches": [1, 4],
}

POINTS = ((0.0, 2), (60.0, 4), (300.0, 4))
"""Two devices arrive after a minute; what they save is paid back in a fraction of a step of some four seconds."""


def inputs(points: tuple[tuple[float, int], ...] = POINTS, **changes: Any) -> Inputs:
    """The tiny job on a pool of these counts; what is named changes the inputs."""
    outline = parse_outline(OUTLINE)
    models: dict[str, HfModel] = {
        name: parse_hf_config(MODEL, "model.json") for name in {stage.model for stage in outline.workflow.stages}
    }
    return Inputs(**{"outline": outline, "models": models, "trace": AvailabilityTrace(points), "gamma": 1.0, **changes})


def write(folder: Path, points: tuple[tuple[float, int], ...] = POINTS, **changes: Any) -> tuple[Path, Path]:
    """The outline, its model beside it, and the trace, as files; what is named changes the outline."""
    (folder / "model.json").write_text(json.dumps(MODEL), encoding="utf-8")
    outline, trace = folder / "outline.json", folder / "pool.csv"
    outline.write_text(json.dumps({**OUTLINE, **changes}), encoding="utf-8")
    rows = [f"{time_s:g},{count}" for time_s, count in points]
    trace.write_text("\n".join(["time_s,available_gpus", *rows, ""]), encoding="utf-8")
    return outline, trace
