"""Walks the scripted transitions: who is there, and which model-stage is where, after each of them.

present, choices --join--> more devices --stages--> new choices --leave--> fewer devices --> the next transition
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nereus.spec.checks import (
    Check,
    check_choices,
    check_plan,
    check_response_cap,
    check_rollouts,
    check_task,
    check_updates,
    check_weights,
)
from nereus.spec.devices import format_devices
from nereus.spec.job import Job
from nereus.spec.plan import ScriptedTransition, StageChoice
from nereus.spec.problems import Problem


@dataclass(frozen=True, slots=True)
class Standing:
    """The pool and the plan between two transitions."""

    present: frozenset[int]
    choices: dict[str, StageChoice]

    def after(self, transition: ScriptedTransition) -> Standing:
        """The pool and the plan when a transition has been carried out."""
        present = (self.present | set(transition.join)) - set(transition.leave)
        return Standing(present, {**self.choices, **transition.stages})


def check_script(job: Job) -> Iterator[Problem]:
    """Transitions come in order, name known devices and model-stages, and leave no model-stage on a missing device."""
    pool = frozenset(range(job.cluster.num_devices))
    yield from _check_names(job, "absent", job.absent)
    now = Standing(pool - set(job.absent), dict(job.plan))
    for stage, choice in now.choices.items():
        yield from _check_place(f"plan.{stage}.devices", choice, now, pool, "absent at the start")
    last = 0
    for index, transition in enumerate(job.transitions):
        field = f"transitions[{index}]"
        yield from _check_step(job, field, transition, last)
        yield from _check_joins(job, field, transition, now.present)
        yield from check_choices(job, f"{field}.stages", transition.stages)
        after = now.after(transition)
        for stage, choice in after.choices.items():
            if stage in transition.stages:
                yield from _check_place(f"{field}.stages.{stage}.devices", choice, after, pool, "not there after it")
            else:
                staying = f"{stage} stays on it; move {stage} in this transition or let others leave"
                for device in sorted(set(transition.leave) & set(choice.devices)):
                    yield Problem(f"{field}.leave", device, staying)
        now, last = after, transition.step


def _check_step(job: Job, field: str, transition: ScriptedTransition, last: int) -> Iterator[Problem]:
    if transition.step <= last:
        yield Problem(f"{field}.step", transition.step, f"it must be above the step of the transition before, {last}")
    if transition.step >= job.steps:
        yield Problem(f"{field}.step", transition.step, f"it must be below steps, which is {job.steps}")
    if not (transition.join or transition.leave or transition.stages):
        yield Problem(field, "an empty transition", "it must name at least one of join, leave and stages")


def _check_names(job: Job, field: str, devices: tuple[int, ...]) -> Iterator[Problem]:
    beyond = tuple(device for device in devices if device >= job.cluster.num_devices)
    if beyond:
        all_devices = format_devices(tuple(range(job.cluster.num_devices)))
        yield Problem(field, format_devices(beyond), f"the devices of the cluster are {all_devices}")
    if len(set(devices)) != len(devices):
        yield Problem(field, format_devices(devices), "a device can be named once only")


def _check_joins(job: Job, field: str, transition: ScriptedTransition, present: frozenset[int]) -> Iterator[Problem]:
    here = format_devices(tuple(sorted(present)))
    yield from _check_names(job, f"{field}.join", transition.join)
    yield from _check_names(job, f"{field}.leave", transition.leave)
    for device in transition.join:
        if device in present:
            yield Problem(f"{field}.join", device, f"only an absent device can join; present before it: {here}")
    for device in transition.leave:
        if device < job.cluster.num_devices and device not in present:
            yield Problem(f"{field}.leave", device, f"only a present device can leave; present before it: {here}")


def _check_place(field: str, choice: StageChoice, now: Standing, pool: frozenset[int], why: str) -> Iterator[Problem]:
    missing = tuple(device for device in choice.devices if device in pool and device not in now.present)
    if missing:
        here = format_devices(tuple(sorted(now.present)))
        yield Problem(field, format_devices(missing), f"{why}; the devices that are there: {here}")


CHECKS: tuple[Check, ...] = (
    check_weights,
    check_task,
    check_updates,
    check_response_cap,
    check_rollouts,
    check_plan,
    check_script,
)
"""Every rule between fields, in the order in which its problems are reported."""
