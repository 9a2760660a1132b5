"""Small worlds and plans to try the truth on."""

from __future__ import annotations

from typing import Any

from nereus.emu.plan import Plan, StagePlan
from nereus.layout.layout import Layout
from nereus.sim.truth import Truth
from nereus.spec.decoder import Decoder
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline, parse_outline

LLAMA_8B = Decoder(
    hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=14_336, vocab_size=128_256
)
"""Llama-3.1-8B, from its published config.json."""

QWEN_32B = Decoder(
    hidden_size=5120, num_layers=64, num_heads=64, num_kv_heads=8, head_dim=128, ffn_size=25_600, vocab_size=151_936
)
"""Qwen3-32B, from its published config.json."""


def make_outline(algorithm: str = "grpo", *, kind: str = "H100", nodes: int = 2, devices: int = 8, **fields: Any) -> Outline:
    """An outline whose models are never read; `fields` are those of the workload."""
    models = {"actor": "config.json"} | ({"reward": "rule"} if algorithm == "grpo" else {})
    workload = {"prompts_per_step": 128, "samples_per_prompt": 4, "prompt_tokens": 256, "response_tokens": 1024} | fields
    asynchronous = workload.pop("asynchronous", False)
    pool = [{"kind": kind, "count": nodes, "devices": devices}]
    return parse_outline(
        {
            "name": "world",
            "algorithm": algorithm,
            "asynchronous": asynchronous,
            "models": models,
            "workload": workload,
            "nodes": pool,
        }
    )


def make_truth(outline: Outline, decoder: Decoder = LLAMA_8B, seed: int = 0) -> Truth:
    """A world in which all models are equal."""
    names = {stage.model for stage in outline.workflow.stages}
    return Truth(outline, dict.fromkeys(names, HfModel(decoder, "bfloat16")), seed)


def make_stage(stage: str, degrees: tuple[int, int, int], first: int = 0, micro_batch: int = 1, **more: bool) -> StagePlan:
    """A model-stage with (tp, pp, dp) on neighbouring devices."""
    tp, pp, dp = degrees
    return StagePlan(stage, Layout(tp, pp), dp, tuple(range(first, first + tp * pp * dp)), micro_batch, **more)


def make_plan(outline: Outline, degrees: tuple[int, int, int], micro_batch: int = 1) -> Plan:
    """Every holder on the first devices, with the same degrees."""
    return Plan(0, {name: make_stage(name, degrees, 0, micro_batch) for name in outline.workflow.holders})
