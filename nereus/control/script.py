"""The targets of a scripted transition: the job file names sets of devices, residency chooses their ranks."""

from __future__ import annotations

from nereus.control.state import JobState
from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.spec.plan import ScriptedTransition, StageChoice
from nereus.transition.arrange import arrange
from nereus.transition.residency import most_resident


def targets(state: JobState, entry: ScriptedTransition) -> dict[str, StagePlan]:
    """The stage plans that a scripted transition leads to."""
    return {name: _target(state, name, choice) for name, choice in entry.stages.items()}


def _target(state: JobState, stage: str, choice: StageChoice) -> StagePlan:
    device_of = {endpoint: device for device, endpoint in state.endpoint_of.items()}
    node_of, current = state.config.node_of, state.emus[stage]
    arranged = arrange(current, first_plan(stage, choice), device_of, node_of)
    return most_resident(arranged, current, state.config.states[stage], device_of, node_of)


def first_plan(stage: str, choice: StageChoice) -> StagePlan:
    """A choice of the job file as a stage plan, devices in the order that the file gives."""
    layout = Layout(choice.tp, choice.pp)
    return StagePlan(stage, layout, choice.dp, choice.devices, choice.micro_batch, recompute=choice.recompute)
