"""The plan that a logged run had, since logs of others do not say it: a plan file, held against the outline of the run.

    plan.json {actor_training: {tp: 2, dp: 4, zero1: true}, ...}, Outline -> {holder: RanStage}

`nereus plan OUTLINE --top 1 --json` writes such a file. Model-stages that it leaves out are not learnt from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nereus.spec.devices import format_devices
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Nodes, Outline
from nereus.spec.plan_file import Admitted, PlannedStage, parse_plan, stages_of
from nereus.spec.problems import Problem, refuse
from nereus.spec.reading import read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class RanStage:
    """How a run ran a holder of devices."""

    nodes: Nodes
    """The node group of its devices: which accelerator it was."""
    choice: PlannedStage


def read_ran(path: Path, outline: Outline, models: Mapping[str, HfModel]) -> dict[str, RanStage]:
    """The plan of a run of this outline. Raises JobFileError for what the outline's job cannot have run."""
    return parse_ran(read_data(path, "plan file"), str(path), outline, models)


def parse_ran(data: object, name: str, outline: Outline, models: Mapping[str, HfModel]) -> dict[str, RanStage]:
    """The same of plain data; `name` is what messages call it."""
    found, problems, holders = {}, list[Problem](), outline.workflow.holders
    for stage, choice in stages_of(data, name).items():
        model = outline.workflow.stage(stage if stage in holders else holders[0]).model
        admitted = Admitted(models[model].decoder, None, holders)
        found[stage] = parse_plan({stage: choice}, name, admitted)[stage]
        problems += _check(f"{name}: {stage}", found[stage], outline)
    if problems:
        raise refuse(problems)
    return {stage: RanStage(nodes=_groups(choice, outline)[0], choice=choice) for stage, choice in found.items()}


def _check(field: str, choice: PlannedStage, outline: Outline) -> Iterator[Problem]:
    batch = outline.workload.global_batch
    if choice.fsdp > 1:
        yield Problem(f"{field}.fsdp", choice.fsdp, "its cost is not known; count FSDP ranks as dp, with zero1: true")
    if choice.dp > batch:
        yield Problem(f"{field}.dp", choice.dp, f"it must be at most the {batch} sequences of a step")
    beyond = tuple(device for device in choice.devices if device >= outline.num_devices)
    if beyond:
        there = f"the outline's nodes have devices 0-{outline.num_devices - 1}; declare the nodes that the run had"
        yield Problem(f"{field}.devices", format_devices(beyond), f"{there}, and plan for fewer with --gpus")
    elif len({(group.kind, group.memory_bytes) for group in _groups(choice, outline)}) > 1:
        yield Problem(f"{field}.devices", format_devices(choice.devices), "an EMU stays on devices of one kind and memory")


def _groups(choice: PlannedStage, outline: Outline) -> list[Nodes]:
    """The node group of each of its devices, which are numbered node by node."""
    owners = [group for group in outline.nodes for _ in range(group.count * group.devices)]
    return [owners[device] for device in choice.devices if device < len(owners)]
