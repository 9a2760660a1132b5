"""Which scenarios are simulated: real traces times real length curves, with models, algorithms and synchrony in rotation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nereus.sim.inputs import Inputs
from nereus.sim.scenario import Scenario
from nereus.spec.hf_config import HfModel, parse_hf_config
from nereus.spec.lengths import read_lengths
from nereus.spec.outline import Outline, parse_outline
from nereus.spec.reading import read_data
from nereus.spec.traces import AvailabilityTrace, read_availability

TRACES = (
    "bamboo_aws_p3.csv",
    "parcae_p3_hh_55_65.csv",
    "parcae_p3_lh_80_90.csv",
    "bamboo_gcp_a100_us-east1-b.csv",
    "sky_availab_16-node_08-27-2023_us-west-2a_v100x1.csv",
    "tenplex_dynamic_538min.csv",
)
"""Pools of several devices that change: quickly, slowly, down to nothing, and on a schedule."""

CURVES = (
    ("curve_areal_qwen2.5-7b-zero_response_length.csv", 4096, None),
    ("verl_softgrpo_1.5B_Direclet_noise.csv", 8192, 8192),
    ("verl_softgrpo_1.5B_normal_grpo.csv", 8192, 8192),
    ("verl_softgrpo_1.5B_Direclet_noise_1.csv", 8192, 8192),
)
"""Mean responses that grow, shrink and stay; the longest that the job declares; and where the measured run cut them off
(`response_length_max` of nearly all of its steps; the other file has means only, and responses far from any limit)."""

MODELS = (
    ("Meta-Llama-3.1-8B.json", 16, 128),
    ("Qwen3-14B.json", 32, 128),
    ("Qwen3-32B.json", 64, 128),
    ("Meta-Llama-3.1-70B.json", 128, 128),
)
"""Config of all models of a job, devices of its pool (what the largest count of a trace becomes), and sequences of a step,
such that a step takes a minute or two, as in the paper: more, and the notice of a device is shorter than a step."""

ALGORITHMS = (("ppo", False), ("grpo", True), ("remax", False), ("grpo", False), ("ppo", True))
"""Algorithm, and whether generation runs beside training."""

STEPS = 200
"""RL steps of a scenario: hours of a job, and dozens of changes of the pool."""

QUICK_CASES = (0, 9, 18)
"""Numbers of the scenarios of the quick mode: three traces, curves and models."""

PROMPT_TOKENS = 512
"""Prompts of a few hundred tokens, as in the paper's default workload."""


@dataclass(frozen=True)
class Case:
    """One scenario."""

    name: str
    outline: Outline
    models: dict[str, HfModel]
    trace: AvailabilityTrace
    lengths: tuple[tuple[int, float], ...]
    longest: int | None
    """Where responses are cut off, in tokens."""
    seed: int

    def scenario(self, gamma: float = 0.5) -> Scenario:
        """The world of this case; every case has its own."""
        return Inputs(
            outline=self.outline,
            models=self.models,
            trace=self.trace,
            lengths=self.lengths,
            longest=self.longest,
            seed=self.seed,
            gamma=gamma,
        ).scenario()


def cases(data: Path) -> tuple[Case, ...]:
    """All pairs of a trace and a curve."""
    found = []
    for number, (trace, (curve, longest, cut)) in enumerate((trace, curve) for trace in TRACES for curve in CURVES):
        config, devices, sequences = MODELS[(number + number // len(CURVES)) % len(MODELS)]
        algorithm, asynchronous = ALGORITHMS[number % len(ALGORITHMS)]
        lengths = read_lengths(data / "lengths" / curve)
        mean = min(round(lengths[0][1]), longest)
        outline = parse_outline(_outline(config, devices, sequences, algorithm, (mean, longest), asynchronous=asynchronous))
        model = parse_hf_config(read_data(data / "hf_configs" / config, "model"), config)
        found.append(
            Case(
                name=f"{trace} {curve} {config} {algorithm}{' async' if asynchronous else ''}",
                outline=outline,
                models=dict.fromkeys({stage.model for stage in outline.workflow.stages}, model),
                trace=_scaled(read_availability(data / "availability" / trace), devices),
                lengths=lengths,
                longest=cut,
                seed=number,
            )
        )
    return tuple(found)


def _outline(
    config: str, devices: int, sequences: int, algorithm: str, tokens: tuple[int, int], *, asynchronous: bool
) -> dict[str, Any]:
    samples = {"ppo": 1, "grpo": 8, "remax": 1}[algorithm]
    return {
        "name": config.removesuffix(".json"),
        "algorithm": algorithm,
        "asynchronous": asynchronous,
        "models": {"actor": config},
        "workload": {
            "prompts_per_step": sequences // samples,
            "samples_per_prompt": samples,
            "prompt_tokens": PROMPT_TOKENS,
            "response_tokens": tokens[0],
            "longest_response_tokens": tokens[1],
        },
        "nodes": [{"kind": "H100", "count": devices // 8, "devices": 8}],
        "micro_batches": [1, 4],
    }


def _scaled(trace: AvailabilityTrace, devices: int) -> AvailabilityTrace:
    """The largest count becomes the whole pool; none stays none."""
    most = max(count for _, count in trace.points)
    return AvailabilityTrace(tuple((time, round(count * devices / most)) for time, count in trace.points))
