"""The targets of a scripted transition: the job file names sets of devices, residency chooses their ranks."""

from __future__ import annotations

from nereus.control.state import JobState
from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.spec.plan import ScriptedTransition, StageChoice
from nereus.transition.arrange import arrange


def targets(state: JobState, entry: ScriptedTransition) -> dict[str, StagePlan]:
    """The stage plans that a scripted transition leads to."""
    device_of = {endpoint: device for device, endpoint in state.endpoint_of.items()}
    return {
        name: arrange(
            state.emus[name],
            name,
            Layout(choice.tp, choice.pp),
            choice.dp,
            choice.devices,
            device_of,
            state.config.node_of,
            choice.micro_batch,
        )
        for name, choice in entry.stages.items()
    }


def first_plan(stage: str, choice: StageChoice) -> StagePlan:
    """A choice of the job file as a stage plan, devices in the order that the file gives."""
    return StagePlan(stage, Layout(choice.tp, choice.pp), choice.dp, choice.devices, choice.micro_batch)
