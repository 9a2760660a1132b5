"""Plan files: the layout and devices of each model-stage, for a transition that nobody has asked a job for yet.

    {model-stage: {tp, pp, dp, fsdp, zero1, devices, micro_batch}}       JSON, or YAML

More than the native job runs (fsdp, zero1) can be said here. What Nereus itself prints can be given as it is: a summary
with its `final_plan`, the plan of the API or of `nereus status --json`, and one plan of `nereus plan --json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, Strict, ValidationError, ValidationInfo, field_validator

from nereus.spec.checks import check_devices, check_pp, check_tp
from nereus.spec.cluster import Cluster
from nereus.spec.declared import Declared, Whole
from nereus.spec.decoder import Decoder
from nereus.spec.devices import MAX_DEVICES, Devices
from nereus.spec.problems import Problem, from_validation, one_of, refuse, unknown
from nereus.spec.reading import read_data
from nereus.spec.stages import ROLES, role_of

WRAPPERS = ("final_plan", "answers", "plan", "plans", "stages", "holders")
"""Where the files that Nereus writes, and job files, keep a plan."""
REPORTED = frozenset(
    ("seconds", "state_bytes", "live_bytes", "kind", "memory_bytes", "resident_bytes", "host_bytes", "pinned")
)
"""What `nereus plan --json` says about a model-stage besides its plan."""

UNKNOWN: Mapping[str, object] = {"ep": 1, "offload": "none"}
"""What it says of plans of outlines that plan files do not have: the values that say nothing."""


class PlannedStage(BaseModel):
    """The layout, DP degree and devices of one model-stage, in all forms in which state can be sharded."""

    model_config = Declared.model_config

    tp: Whole = Field(default=1, ge=1)
    """Tensor-parallel degree; it divides the query heads."""
    pp: Whole = Field(default=1, ge=1)
    """Pipeline stages; layers may be spread unevenly."""
    dp: Whole = Field(default=1, ge=1)
    """EMUs, that is replicas."""
    fsdp: Whole = Field(default=1, ge=1)
    """Ranks of one EMU that share its parameters and optimizer state by rows."""
    zero1: Annotated[bool, Strict()] = False
    """Whether the replicas share the optimizer state."""
    devices: Devices = Field(default=(), min_length=1, validate_default=True)
    """tp * pp * fsdp * dp device numbers, dp groups in rank order: tp fastest, then fsdp, then pp. Default: the first."""
    micro_batch: Whole = Field(default=1, ge=1)
    """Sequences of one EMU that go through the model together; no state depends on it."""
    recompute: Annotated[bool, Strict()] = False
    """Whether the backward computes whole layers again; no state depends on it."""

    @field_validator("devices", mode="before")
    @classmethod
    def _first_devices(cls, devices: object, info: ValidationInfo) -> object:
        if devices != ():
            return devices
        needed = 1
        for axis in ("tp", "pp", "dp", "fsdp"):
            needed *= info.data.get(axis, 1)
        return tuple(range(min(needed, MAX_DEVICES)))

    @property
    def degrees(self) -> dict[str, int]:
        """What its devices multiply up to."""
        return {"tp": self.tp, "pp": self.pp, "dp": self.dp, **({"fsdp": self.fsdp} if self.fsdp > 1 else {})}


PlanFile = dict[str, PlannedStage]
"""By model-stage."""


class Admitted(NamedTuple):
    """What the layouts of a plan file must suit."""

    decoder: Decoder
    cluster: Cluster | None
    """None where only the model is known, and any device can be named."""
    stages: tuple[str, ...] | None
    """The model-stages there are; None where every name that ends in a role is one."""


def read_plans(before: Path, after: Path, admitted: Admitted) -> tuple[PlanFile, PlanFile]:
    """Two plan files of the same model-stages. Raises JobFileError with all problems of a file in one message."""
    plans = read_plan(before, admitted), read_plan(after, admitted)
    paths = before, after
    for index, other in ((1, 0), (0, 1)):
        lacking = [stage for stage in plans[other] if stage not in plans[index]]
        if lacking:
            advice = f"{paths[other]} has it; name it in both, with the same plan if it stays as it is"
            raise refuse([Problem(f"{paths[index]}: {stage}", None, advice) for stage in lacking])
    return plans


def read_plan(path: Path, admitted: Admitted) -> PlanFile:
    """The plan in a file. Raises JobFileError with all of its problems in one message."""
    return parse_plan(read_data(path, "plan file"), str(path), admitted)


def parse_plan(data: object, name: str, admitted: Admitted) -> PlanFile:
    """The plan in plain data; `name` is what messages call it."""
    found: PlanFile = {}
    problems: list[Problem] = []
    for stage, choice in stages_of(data, name).items():
        field = f"{name}: {stage}"
        wrong = list(_check_stage(field, stage, choice, admitted))
        if not wrong:
            known = {key: value for key, value in choice.items() if key not in REPORTED | UNKNOWN.keys()}
            try:
                found[stage] = PlannedStage.model_validate(known)
                wrong = list(_check_fit(field, found[stage], admitted))
            except ValidationError as error:
                seen = from_validation(error, PlannedStage, known)
                wrong = [problem._replace(field=f"{field}.{problem.field}") for problem in seen]
        problems += wrong
    if problems:
        raise refuse(problems)
    return found


def stages_of(data: object, name: str) -> Mapping[Any, Any]:
    """The mapping of model-stages, out of what Nereus wraps it in."""
    for _ in WRAPPERS:
        wrapper = next((key for key in WRAPPERS if isinstance(data, Mapping) and key in data), None)
        if wrapper is None:
            break
        data = data[wrapper]  # type: ignore[index]
        if wrapper in ("answers", "plans") and isinstance(data, list):
            if len(data) != 1:
                allowed = "one plan is needed; keep one entry, or ask `nereus plan` for one number of GPUs and `--top 1`"
                raise refuse([Problem(f"{name}: {wrapper}", f"{len(data)} {wrapper}", allowed)])
            data = data[0]
    if not isinstance(data, Mapping) or not data:
        raise refuse([Problem(name, data, "it must be a mapping of model-stages, such as {actor_training: {tp: 2, dp: 4}}")])
    return data


def _check_stage(field: str, stage: object, choice: object, admitted: Admitted) -> Iterator[Problem]:
    if admitted.stages is not None and stage not in admitted.stages:
        yield Problem(field, choice, unknown(stage, admitted.stages, "model-stage"))
    elif admitted.stages is None and (not isinstance(stage, str) or role_of(stage) is None):
        roles = one_of(f"_{role}" for role in ROLES)
        yield Problem(field, choice, f"a model-stage is a model and its role, so the name must end in {roles}")
    elif not isinstance(choice, Mapping):
        yield Problem(field, choice, f"it must be a mapping with the fields {', '.join(PlannedStage.model_fields)}")
    else:
        for key, nothing in UNKNOWN.items():
            if choice.get(key, nothing) != nothing:
                allowed = f"plan files have no {key} yet; in an outline, pin {key}: {nothing} and plan again"
                yield Problem(f"{field}.{key}", choice[key], allowed)


def _check_fit(field: str, choice: PlannedStage, admitted: Admitted) -> Iterator[Problem]:
    decoder, cluster = admitted.decoder, admitted.cluster
    yield from check_tp(f"{field}.tp", choice.tp, decoder, cluster.num_devices if cluster else decoder.num_heads)
    yield from check_pp(f"{field}.pp", choice.pp, decoder)
    yield from check_devices(f"{field}.devices", choice.devices, choice.degrees, cluster)
