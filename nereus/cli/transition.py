"""`nereus transition`: what moving from one plan to another takes, for a job or for the config.json of any supported model.

JOB, two plan files -> plans and states -> nereus.transition.summary -> one JSON object, or tables
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nereus.emu.plan import StagePlan
from nereus.emu.unit import counter_tensors
from nereus.errors import UserError
from nereus.layout.catalog import StateSpec
from nereus.layout.dense import state_spec
from nereus.layout.layout import Layout
from nereus.layout.tensors import Kind
from nereus.spec.hf_config import HfModel, is_hf_config, parse_movable
from nereus.spec.job import Job
from nereus.spec.loading import load_job
from nereus.spec.plan_file import Admitted, PlanFile, read_plans
from nereus.spec.reading import read_data
from nereus.spec.sizes import parse_bytes
from nereus.spec.stages import role_of
from nereus.transition.estimate import LinkRates
from nereus.transition.ops import BUCKET_BYTES, Op
from nereus.transition.summary import Link, Question, Summary, summarize_transition

DEVICES_PER_NODE = 8
"""What a config.json does not say: most nodes with accelerators have eight."""

MIN_BUCKET_BYTES = 1 << 20
"""As for `policy.bucket` of a job: below it, messages are so short that their number is what takes time."""

SHOWN_PAIRS = 10
"""Rows of the table of moves: the pairs between which most bytes go."""

SHOWN_NAMES = 3
"""Units or operations that a line names; more of them are counted."""

LINK_NAMES = {Link.LOCAL: "copied on a device", Link.NODE: "within a node", Link.NETWORK: "between nodes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for besides the files; None is left to the job, or to the default."""

    keep_order: bool = False
    devices_per_node: int | None = None
    memory: str | None = None
    bucket: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is moved, and what is known of the devices."""

    name: str
    dtype: str
    admitted: Admitted
    states: Mapping[str, StateSpec]
    """By model-stage, or by role where any model-stage may be named."""
    devices_per_node: int = DEVICES_PER_NODE
    usable_bytes: float = float("inf")
    bucket_bytes: int = BUCKET_BYTES
    rates: LinkRates = field(default_factory=LinkRates)

    @property
    def num_parameters(self) -> int:
        """Of the model, tied ones once."""
        state = next(iter(self.states.values()))
        return sum(tensor.num_elements for tensor in state.tensors if tensor.kind is Kind.PARAMETER)

    def state_of(self, stage: str) -> StateSpec:
        """The logical state of a model-stage."""
        return self.states[stage] if stage in self.states else self.states[role_of(stage) or ""]


def show_transition(path: Path, before: Path, after: Path, options: Options, *, as_json: bool) -> None:
    """Plan the transition and print what it takes. Raises UserError for files and options that a person can fix."""
    memory, bucket = _bytes("--memory", options.memory), _bytes("--bucket", options.bucket, MIN_BUCKET_BYTES)
    subject = read_subject(path)
    plans = read_plans(before, after, subject.admitted)
    summary = summarize_transition(
        Question(
            before=_stage_plans(plans[0]),
            after=_stage_plans(plans[1]),
            states={stage: subject.state_of(stage) for stage in plans[0]},
            devices_per_node=options.devices_per_node or subject.devices_per_node,
            usable_bytes=memory or subject.usable_bytes,
            bucket_bytes=bucket or subject.bucket_bytes,
            keep_order=options.keep_order,
            rates=subject.rates,
        )
    )
    if as_json:
        print(json.dumps(as_dict(subject, summary)))  # noqa: T201
        return
    console = Console()
    for part in _parts(subject, summary):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))


def read_subject(path: Path) -> Subject:
    """What a job file or a config.json says. Raises JobFileError."""
    data = read_data(path, "JOB")
    if is_hf_config(data) or (path.suffix == ".json" and not (isinstance(data, dict) and "cluster" in data)):
        return _of_model(parse_movable(data, str(path)), str(path))
    return _of_job(load_job(path))


def _of_job(job: Job) -> Subject:
    from nereus.rl.describe import describe

    memory = job.cluster.device.memory
    config = describe(job)
    states = config.states
    return Subject(
        name=job.name,
        dtype=job.dtype,
        admitted=Admitted(job.model.decoder, job.cluster, tuple(states)),
        states=states,
        devices_per_node=job.cluster.devices_per_node,
        usable_bytes=float("inf") if memory is None else memory * (1 - job.policy.headroom),
        bucket_bytes=job.policy.bucket,
        rates=config.links,
    )


def _of_model(model: HfModel, name: str) -> Subject:
    """A config says nothing of roles: model-stages that train have optimizer state, the others have not."""
    served, trained = (
        state_spec(model.decoder, model.dtype, counter_tensors(), optimizer=optimizer) for optimizer in (False, True)
    )
    states = {"generation": served, "inference": served, "training": trained}
    return Subject(name=name, dtype=model.dtype, admitted=Admitted(model.decoder, None, None), states=states)


def _stage_plans(plan: PlanFile) -> dict[str, StagePlan]:
    return {
        stage: StagePlan(
            stage,
            Layout(choice.tp, choice.pp, choice.fsdp),
            choice.dp,
            choice.devices,
            choice.micro_batch,
            choice.zero1,
            choice.recompute,
        )
        for stage, choice in plan.items()
    }


def _bytes(option: str, text: str | None, least: int = 1) -> int | None:
    """The size that an option gives. Raises UserError."""
    if text is None:
        return None
    try:
        size = int(text) if text.isascii() and text.isdigit() else parse_bytes(text)
    except ValueError as error:
        raise UserError(f"{option}: {text!r} is not allowed; {error}") from None
    assert isinstance(size, int)
    if size < least:
        raise UserError(f"{option}: {text!r} is not allowed; it must be at least {least} bytes")
    return size


def as_dict(subject: Subject, summary: Summary) -> dict[str, Any]:
    """What --json prints."""
    family = subject.admitted.decoder.family
    model = {"family": family, "num_parameters": subject.num_parameters, "dtype": subject.dtype}
    return {"job": subject.name, "model": model, **summary.as_dict()}


def _parts(subject: Subject, summary: Summary) -> Iterator[Table | str]:
    family = subject.admitted.decoder.family
    yield f"{subject.name}: {family}, {subject.num_parameters:,} parameters in {subject.dtype}"
    yield _plans(summary)
    yield from _dag(summary.transition.ops) if summary.transition.ops else ["no state moves"]
    if summary.moved:
        yield _bytes_line(summary)
        yield _pairs(summary)
        yield _communicators(summary)
    peaks = summary.peak_bytes
    fullest = max(peaks, key=lambda device: (peaks[device], -device))
    yield f"peak of a device: {size(peaks[fullest])} on device {fullest}, {size(min(peaks.values()))} on the emptiest"
    yield f"L_tran: {summary.seconds:.2f} s by the rates of unmeasured links"
    yield f"{summary.feasible}: {summary.reason}"


def _plans(summary: Summary) -> Table:
    table = Table()
    for heading in ("model-stage", "from", "to"):
        table.add_column(heading)
    for stage, plan in summary.after.items():
        table.add_row(stage, str(summary.question.before[stage]), str(plan))
    return table


def _dag(ops: tuple[Op, ...]) -> Iterator[str]:
    """A line for each operation, in the order of dispatch."""
    yield f"{len(ops)} operations:"
    for op in ops:
        primitives = ", ".join(f"{count} {name}" for name, count in Counter(op.primitives).items())
        done = [f"makes {_some([str(emu.unit) for emu in op.makes])}"] if op.makes else []
        done += [f"frees {_some(sorted({str(site.unit) for site in op.frees}))}"] if op.frees else []
        done += [f"{size(op.num_bytes)} sent"] if op.num_bytes else []
        done += [f"streamed in {len(op.stream.buckets)} buckets"] if op.stream else []
        done += [f"after {_some(list(op.after))}"] if op.after else []
        yield f"  {op.id}  {primitives}: {'; '.join(done)}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else "")


def _bytes_line(summary: Summary) -> str:
    found = ", ".join(f"{size(num_bytes)} {LINK_NAMES[link]}" for link, num_bytes in summary.bytes_by_link.items())
    return f"bytes: {found}; {size(summary.lower_bound)} is the least that can be sent to these ranks"


def _pairs(summary: Summary) -> Table:
    wire = sorted((item for item in summary.moved.items() if item[0][0] != item[0][1]), key=lambda item: (-item[1], item[0]))
    table = Table(title=f"{len(wire)} pairs of devices", title_justify="left")
    for heading in ("from", "to", "link", "sent"):
        table.add_column(heading, justify="right")
    for (source, target), num_bytes in wire[:SHOWN_PAIRS]:
        table.add_row(str(source), str(target), str(summary.link(source, target)), size(num_bytes))
    if len(wire) > SHOWN_PAIRS:
        table.add_row("..", "..", "", "")
    return table


def _communicators(summary: Summary) -> str:
    found = Counter(len(members) for members in summary.communicators)
    return "communicators: " + (", ".join(f"{count} of {members}" for members, count in sorted(found.items())) or "none")


def size(num_bytes: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"
