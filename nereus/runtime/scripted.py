"""The controller of a job whose plan is fixed, or changes by a script: it answers each boundary with a release.

    start: spawn -> install -> seed -> bind        boundary: [join -> transition -> leave] -> release

The script comes from the job file; decisions come later, through the same ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.emu.unit import Emu, phi
from nereus.errors import EndpointLost, TransitionFailed
from nereus.layout.catalog import EndpointId
from nereus.layout.layout import Layout
from nereus.runtime.boundary import Release, StepReport
from nereus.runtime.carry_out import FACT_TIMEOUT_S, CarryOut, Outcome
from nereus.runtime.events import TransitionReport
from nereus.runtime.facts import DeviceReady, EndpointDied, OpFailed, Seeded
from nereus.runtime.ports import EndpointPort, JobPort
from nereus.spec.plan import ScriptedTransition, StageChoice
from nereus.transition.arrange import arrange
from nereus.transition.dag import transition_dag
from nereus.transition.lowering import lower_sync
from nereus.transition.ops import GroupKey, Op, Program, Transition, program_for


class ScriptedController:
    """Owns the plan and the EMUs of one job."""

    def __init__(
        self,
        endpoints: EndpointPort,
        job: JobPort,
        node_of: Mapping[DeviceId, int],
        script: Iterable[ScriptedTransition],
        on_transition: Callable[[TransitionReport], None] = lambda report: None,
    ) -> None:
        self._endpoints, self._job, self._node_of = endpoints, job, node_of
        self._script = {entry.step: entry for entry in script}
        self._on_transition = on_transition
        self._described = job.describe()
        self._endpoint_of: dict[DeviceId, EndpointId] = {}
        self._emus: dict[str, tuple[Emu, ...]] = {}
        self._plan = Plan(0, {})

    def start(self, choices: Mapping[str, StageChoice], devices: Iterable[DeviceId]) -> Release:
        """Start an endpoint on every device and the first units on them."""
        self._spawn(tuple(devices))
        stages = {name: first_plan(name, choice) for name, choice in choices.items()}
        self._plan = Plan(0, stages)
        self._emus = {name: phi(stage, self._endpoint_of, 0) for name, stage in stages.items()}
        carry = CarryOut(self._endpoints, self._described.states)
        programs, keep = self._programs(0, self._emus, ())
        carry.install(programs)
        units = _all(self._emus)
        self._job.seed(units)
        self._await(Seeded, {endpoint for emu in units for endpoint in emu.endpoints}, "loading the first weights")
        carry.bind(0, units, list(self._endpoint_of.values()), keep)
        return self._release()

    def boundary(self, report: StepReport) -> Release:
        """The units of the next step; carries out what the script says for this boundary first."""
        entry = self._script.get(report.step)
        if entry is not None:
            self._change(entry)
        return self._release()

    def _change(self, entry: ScriptedTransition) -> None:
        self._spawn(entry.join)
        epoch = self._plan.epoch + 1
        targets = {name: self._target(name, choice) for name, choice in entry.stages.items()}
        before = {name: self._emus[name] for name in targets}
        transition = transition_dag(before, targets, self._described.states, self._endpoint_of, epoch, self._same_node)
        made = {name: tuple(emu for emu in transition.result if emu.stage == name) for name in targets}
        after = {**self._emus, **made}
        programs, keep = self._programs(epoch, after, (*transition.moving, *transition.held))
        outcome = CarryOut(self._endpoints, self._described.states).run(
            transition, programs, _all(before), _all(after), keep
        )
        self._emus, self._plan = after, Plan(epoch, {**self._plan.stages, **targets})
        self._retire(entry.leave)
        self._on_transition(self._report(entry, transition, outcome))

    def _target(self, name: str, choice: StageChoice) -> StagePlan:
        """The script names a set of devices; which takes which rank is chosen so that units stay where they are."""
        device_of = {endpoint: device for device, endpoint in self._endpoint_of.items()}
        layout = Layout(choice.tp, choice.pp)
        return arrange(
            self._emus[name], name, layout, choice.dp, choice.devices, device_of, self._node_of, choice.micro_batch
        )

    def _programs(
        self, epoch: int, emus: Mapping[str, tuple[Emu, ...]], ops: tuple[Op, ...]
    ) -> tuple[list[Program], frozenset[GroupKey]]:
        """What every endpoint installs for an epoch of these EMUs, and the communicators that stay after its commit."""
        states, described = self._described.states, self._described
        sync = lower_sync(
            emus[described.trains],
            states[described.trains],
            emus[described.generates],
            states[described.generates],
            sync_op(epoch),
            self._same_node,
        )
        groups = self._job.compute_groups(_all(emus))
        programs = [program_for(endpoint, epoch, (*ops, sync), groups, states) for endpoint in self._endpoint_of.values()]
        return programs, groups | {exchange.group for exchange in sync.exchanges}

    def _spawn(self, devices: tuple[DeviceId, ...]) -> None:
        if not devices:
            return
        self._job.spawn(devices)
        waiting = set(devices)
        while waiting:
            fact = self._endpoints.next_fact(FACT_TIMEOUT_S)
            if fact is None:
                raise TransitionFailed(
                    f"starting workers: devices {sorted(waiting)} did not start in {FACT_TIMEOUT_S:.0f} s"
                )
            if isinstance(fact, EndpointDied):
                raise EndpointLost(fact.endpoint, "starting workers")
            if isinstance(fact, OpFailed):
                raise TransitionFailed(f"starting workers: failed on {fact.endpoint}: {fact.error}") from fact.error
            if isinstance(fact, DeviceReady):
                waiting.discard(fact.device)
                self._endpoint_of[fact.device] = fact.endpoint

    def _retire(self, devices: tuple[DeviceId, ...]) -> None:
        if devices:
            self._job.retire([self._endpoint_of.pop(device) for device in devices])

    def _await(self, kind: type[Seeded], waiting: set[EndpointId], doing: str) -> None:
        while waiting:
            fact = self._endpoints.next_fact(FACT_TIMEOUT_S)
            if fact is None:
                raise TransitionFailed(f"{doing}: no answer from {sorted(waiting)} in {FACT_TIMEOUT_S:.0f} s")
            if isinstance(fact, EndpointDied):
                raise EndpointLost(fact.endpoint, doing)
            if isinstance(fact, OpFailed):
                raise TransitionFailed(f"{doing}: failed on {fact.endpoint}: {fact.error}") from fact.error
            if isinstance(fact, kind):
                waiting.discard(fact.endpoint)

    def _report(self, entry: ScriptedTransition, transition: Transition, outcome: Outcome) -> TransitionReport:
        return TransitionReport(
            step=entry.step,
            epoch=self._plan.epoch,
            primitives=transition.counts,
            joined=entry.join,
            left=entry.leave,
            plan=self._plan,
            outcome=outcome,
        )

    def _release(self) -> Release:
        return Release(epoch=self._plan.epoch, plan=self._plan, emus=dict(self._emus), sync_op=sync_op(self._plan.epoch))

    def _same_node(self, a: EndpointId, b: EndpointId) -> bool:
        node = {endpoint: self._node_of[device] for device, endpoint in self._endpoint_of.items()}
        return node.get(a) == node.get(b)


def _all(emus: Mapping[str, tuple[Emu, ...]]) -> tuple[Emu, ...]:
    """The EMUs of all model-stages."""
    return tuple(emu for replicas in emus.values() for emu in replicas)


def first_plan(stage: str, choice: StageChoice) -> StagePlan:
    """A choice of the job file as a stage plan, devices in the order that the file gives."""
    return StagePlan(stage, Layout(choice.tp, choice.pp), choice.dp, choice.devices, choice.micro_batch)


def sync_op(epoch: int) -> str:
    """The id of an epoch's weight sync."""
    return f"e{epoch}.sync"
