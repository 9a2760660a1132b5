"""The plan in force: where each model-stage is, and how it is cut."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Samples, Source, one
from nereus.spec.stages import STAGES

AXES = ("tp", "pp", "dp")


def model_stages(source: Source) -> list[str]:
    """The native job's model-stages, and those of the plan if it has others."""
    plan = source.projection.plan
    return list(dict.fromkeys((*STAGES, *(plan.stages if plan else ()))))


def _degrees(source: Source) -> Samples:
    plan = source.projection.plan
    for name in model_stages(source):
        stage = plan.stages.get(name) if plan else None
        degrees = (stage.layout.tp, stage.layout.pp, stage.dp) if stage else (0, 0, 0)
        yield from (((name, axis), degree) for axis, degree in zip(AXES, degrees, strict=True))


def _placed(source: Source) -> Samples:
    plan = source.projection.plan
    for name in model_stages(source):
        yield (name,), len(plan.stages[name].devices) if plan and name in plan.stages else 0


def _micro_batches(source: Source) -> Samples:
    plan = source.projection.plan
    for name in model_stages(source):
        yield (name,), plan.stages[name].micro_batch if plan and name in plan.stages else 0


OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Placement",
        "gauge",
        "nereus_plan_epoch",
        "Epoch of the plan in force: one more with each transition.",
        one(lambda s: s.projection.plan.epoch if s.projection.plan else 0),
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
        "Placement",
        "gauge",
        "nereus_placement_micro_batch",
        "Sequences of one replica that go through the model together; 0 before the start.",
        _micro_batches,
        ("model_stage",),
    ),
)
