"""Every metric of Nereus, as one table: what /metrics gives, and `python -m nereus.api.metrics > docs/metrics.md`.

    METRICS -> read(projection) -> prometheus families -> text          METRICS -> document()

Label values are from closed lists or the job's model-stages, there from the first scrape on: an alert sees 0, not nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from math import nan

from nereus import __version__
from nereus.api.checkpoint_metrics import CHECKPOINT_METRICS
from nereus.api.exposition import Described, Samples, Source, Value, text
from nereus.control.phases import End
from nereus.control.report import StepReport
from nereus.policy.admission import Code
from nereus.runtime.projection import Projection
from nereus.spec.stages import STAGES

DEVICE_STATES, AXES = ("ready", "leaving"), ("tp", "pp", "dp")
PRIMITIVES, WEIGHT_SYNC = ("Split", "Merge", "Extend", "Destroy"), "weight_sync"
"""The weight sync is timed beside the model-stages, and not one of them."""


def _one(value: Callable[[Source], Value]) -> Callable[[Source], Samples]:
    return lambda source: [((), value(source))]


def _latest(value: Callable[[StepReport], float]) -> Callable[[Source], Samples]:
    """Of the latest step; not a number before the first."""
    return lambda source: [((), value(source.projection.report) if source.projection.report else nan)]


def _stages(source: Source) -> list[str]:
    """The native job's model-stages, and those of the plan if it has others."""
    plan = source.projection.plan
    return list(dict.fromkeys((*STAGES, *(plan.stages if plan else ()))))


def _degrees(source: Source) -> Samples:
    plan = source.projection.plan
    for name in _stages(source):
        stage = plan.stages.get(name) if plan else None
        degrees = (stage.layout.tp, stage.layout.pp, stage.dp) if stage else (0, 0, 0)
        yield from (((name, axis), degree) for axis, degree in zip(AXES, degrees, strict=True))


def _placed(source: Source) -> Samples:
    plan = source.projection.plan
    for name in _stages(source):
        yield (name,), len(plan.stages[name].devices) if plan and name in plan.stages else 0


def _stage_seconds(source: Source) -> Samples:
    tallies = source.tallies
    for name in (*_stages(source), WEIGHT_SYNC):
        yield (name,), (tallies.stage_runs[name], tallies.stage_s.get(name, 0.0))


METRICS: tuple[Described, ...] = (
    Described(
        "Identity",
        "info",
        "nereus_build_info",
        "The version that runs; always 1.",
        lambda _: [((__version__,), 1)],
        ("version",),
    ),
    Described(
        "Runtime",
        "gauge",
        "nereus_controller_up",
        "1 while the controller answers, else 0: what follows is then old.",
        _one(lambda s: float(s.is_connected)),
    ),
    Described(
        "Runtime", "counter", "nereus_news_total", "News that the controller has told.", _one(lambda s: s.tallies.news)
    ),
    Described(
        "Fleet",
        "gauge",
        "nereus_devices",
        "Devices that are there, by state.",
        lambda s: [((state,), s.projection.devices_by_state()[state]) for state in DEVICE_STATES],
        ("state",),
    ),
    Described(
        "Placement",
        "gauge",
        "nereus_plan_epoch",
        "Epoch of the plan in force: one more with each transition.",
        _one(lambda s: s.projection.plan.epoch if s.projection.plan else 0),
    ),
    Described(
        "Placement",
        "gauge",
        "nereus_placement_degree",
        "Degrees of parallelism (tp, pp, dp) of each model-stage; 0 before the start.",
        _degrees,
        ("model_stage", "axis"),
    ),
    Described(
        "Placement", "gauge", "nereus_placement_devices", "Devices that each model-stage is on.", _placed, ("model_stage",)
    ),
    Described(
        "Decisions",
        "counter",
        "nereus_decisions_total",
        "Candidate plans that were judged, by verdict.",
        lambda s: [((code.value,), s.tallies.decisions[code.value]) for code in Code],
        ("code",),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transitions_total",
        "Transitions that were carried out.",
        _one(lambda s: s.tallies.transitions),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transitions_interrupted_total",
        "Transitions that ended before their commit, by what they came to.",
        lambda s: [((end,), s.tallies.interrupted[end]) for end in map(str, End)],
        ("end",),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transition_primitives_total",
        "Primitives that were carried out.",
        lambda s: [((name,), s.tallies.primitives[name]) for name in PRIMITIVES],
        ("primitive",),
    ),
    Described(
        "Transitions",
        "summary",
        "nereus_transition_seconds",
        "Set-up, movement and commit of each transition.",
        _one(lambda s: (s.tallies.transitions, s.tallies.transition_s)),
    ),
    Described(
        "Transitions",
        "summary",
        "nereus_transition_stall_seconds",
        "How long the loop waited for each transition: `nereus_transition_seconds`, and the digests.",
        _one(lambda s: (s.tallies.transitions, s.tallies.stall_s)),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transition_setup_seconds_total",
        "Part of `nereus_transition_seconds`: making communicators.",
        _one(lambda s: s.tallies.setup_s),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transition_moved_bytes_total",
        "Bytes that transitions moved between endpoints.",
        _one(lambda s: s.tallies.bytes_moved),
    ),
    Described(
        "Transitions",
        "gauge",
        "nereus_transition_peak_bytes",
        "Highest use of any device's memory in the last transition; 0 before the first.",
        _one(lambda s: s.projection.transition_peak_bytes or 0),
    ),
    Described("Steps", "counter", "nereus_steps_total", "Completed RL steps.", _one(lambda s: s.tallies.steps)),
    Described(
        "Steps", "counter", "nereus_samples_total", "Responses that were trained on.", _one(lambda s: s.tallies.samples)
    ),
    Described(
        "Steps",
        "summary",
        "nereus_step_seconds",
        "Wall time of the steps with the weight sync before each; transitions are not part of it.",
        _one(lambda s: (s.tallies.steps, s.tallies.step_s)),
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
        "Cost model",
        "summary",
        "nereus_cost_transition_predicted_seconds",
        "What was predicted for the transitions that were carried out, scripted ones included.",
        _one(lambda s: (s.tallies.transitions, s.tallies.predicted_s)),
    ),
    Described(
        "Cost model",
        "summary",
        "nereus_cost_transition_measured_seconds",
        "What the same transitions came to: the ratio of the sums is the bias of the prediction.",
        _one(lambda s: (s.tallies.transitions, s.tallies.transition_s)),
    ),
    *CHECKPOINT_METRICS,
    Described(
        "Cost model",
        "counter",
        "nereus_late_seconds_total",
        "By how much the paced segments of all emulated devices took longer than declared.",
        _one(lambda s: s.tallies.late_s),
    ),
    Described(
        "Cost model",
        "counter",
        "nereus_declared_seconds_total",
        "What these segments should have taken: late over declared is the lateness.",
        _one(lambda s: s.tallies.declared_s),
    ),
)
"""In the order of the document."""


def exposition(projection: Projection, *, is_connected: bool) -> bytes:
    """What Prometheus scrapes."""
    return text(METRICS, Source(projection, is_connected))


INTRODUCTION = """\
# Metrics

<!-- Made by `python -m nereus.api.metrics > docs/metrics.md`; change nereus/api/metrics.py instead. -->

While a job runs, `GET /metrics` of its [API](api.md) gives these metrics in the Prometheus text format. They are of one job
and count from its start; a controller that restarts goes on counting. Label values are from closed lists and there from the
first scrape on. A summary has `_count` and `_sum`; times are in seconds, sizes in bytes.

| label | values |
|---|---|
| `model_stage` | The model-stages of the job; in `nereus_stage_seconds` also `{weight_sync}`. |
| `state` | {states} |
| `axis` | {axes} |
| `code` | {codes} |
| `primitive` | {primitives} |
| `version` | That of the package. |
"""


def document() -> str:
    """docs/metrics.md as it is committed."""

    def listed(values: Iterable[str]) -> str:
        return ", ".join(f"`{value}`" for value in values)

    page = INTRODUCTION.format(
        states=listed(DEVICE_STATES),
        codes=listed(code.value for code in Code),
        primitives=listed(PRIMITIVES),
        axes=listed(AXES),
        weight_sync=WEIGHT_SYNC,
    )
    for group in dict.fromkeys(metric.group for metric in METRICS):
        rows = [metric for metric in METRICS if metric.group == group]
        page += f"\n## {group}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
        page += "".join(f"| `{m.name}` | {m.kind} | {listed(m.labels)} | {m.meaning} |\n" for m in rows)
    return page


if __name__ == "__main__":
    sys.stdout.write(document())
