"""The RL steps: how many, how long, and what came of the latest."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

from nereus.control.report import StepReport
from nereus.metrics.exposition import Described, Samples, Source, one
from nereus.metrics.placement import model_stages

WEIGHT_SYNC = "weight_sync"
"""The weight sync is timed beside the model-stages, and not one of them."""


def _latest(value: Callable[[StepReport], float]) -> Callable[[Source], Samples]:
    """Of the latest step; not a number before the first."""
    return one(lambda source: value(source.projection.report) if source.projection.report else nan)


def _stage_seconds(source: Source) -> Samples:
    tallies = source.tallies
    for name in (*model_stages(source), WEIGHT_SYNC):
        yield (name,), (tallies.stage_runs[name], tallies.stage_s.get(name, 0.0))


OF_JOBS: tuple[Described[Source], ...] = (
    Described("Steps", "counter", "nereus_steps_total", "Completed RL steps.", one(lambda s: s.tallies.steps)),
    Described(
        "Steps", "counter", "nereus_samples_total", "Responses that were trained on.", one(lambda s: s.tallies.samples)
    ),
    Described(
        "Steps",
        "summary",
        "nereus_step_seconds",
        "Wall time of the steps with the weight sync before each; transitions are not part of it.",
        one(lambda s: (s.tallies.steps, s.tallies.step_s)),
    ),
    Described(
        "Steps",
        "summary",
        "nereus_stage_seconds",
        "Wall time of each model-stage, and of the weight sync (`weight_sync`), in the steps.",
        _stage_seconds,
        ("model_stage",),
    ),
    Described(
        "Steps",
        "gauge",
        "nereus_step_reward",
        "Mean reward of the latest step; NaN before the first.",
        _latest(lambda r: r.reward),
    ),
    Described(
        "Steps",
        "gauge",
        "nereus_step_response_tokens",
        "Mean length of a response in the latest step; NaN before the first.",
        _latest(lambda r: r.response_tokens_mean),
    ),
    Described(
        "Steps",
        "gauge",
        "nereus_step_response_tokens_max",
        "Longest response of the latest step; NaN before the first.",
        _latest(lambda r: r.response_tokens_max),
    ),
    Described(
        "Steps",
        "gauge",
        "nereus_step_peak_bytes",
        "Highest use of any device's memory in the latest step; NaN before the first.",
        _latest(lambda r: max(r.peak_bytes.values(), default=0)),
    ),
    Described(
        "Steps",
        "gauge",
        "nereus_step_loss",
        "Mean loss per response token of the latest step; NaN before the first.",
        _latest(lambda r: r.loss),
    ),
    Described(
        "Steps",
        "gauge",
        "nereus_step_kl",
        "KL estimate to the reference per token in the latest step; NaN before the first.",
        _latest(lambda r: r.kl),
    ),
    Described(
        "Steps",
        "gauge",
        "nereus_step_grad_norm",
        "Global gradient norm of the latest step's last update, before clipping; NaN before the first.",
        _latest(lambda r: r.grad_norm),
    ),
)
