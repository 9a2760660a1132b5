"""The candidates of an outline on accelerators: every legal way to run each holder of devices, priced by the cost model.

    Outline, models -> Pricer.options(holder) -> rows -> Problem -> solve           posed.py
    a StagePlan     -> Pricer.of_plan         -> the option that it is              outline_pricing.py

Latency is that of mean lengths, memory that of the longest. What stays on a device while a holder is idle is apart from what
lives only while it computes, since holders may share devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from nereus.cost.components import Component, offloaded_bytes
from nereus.cost.execution import MEGATRON, PLAIN, Execution, Recompute
from nereus.emu.plan import StagePlan
from nereus.planner.degrees import Degrees
from nereus.planner.options import Option
from nereus.planner.prices import Prices
from nereus.spec.workflow import GENERATION

REGIMES = {"plain": PLAIN, "megatron": MEGATRON}


@dataclass(frozen=True)
class Pricer(Prices):
    """Prices what an outline can do on the devices that it has."""

    across: bool = False
    """Whether TP over several nodes is offered to every holder, not only to those that fit in no other way."""

    def can_be_cut(self, holder: str) -> bool:
        """Whether any DP degree and micro-batch divides the sequences of a holder, whatever the memory."""
        runs = (self._runs(holder, kind, across=across) for kind in range(len(self.kinds)) for across in (False, True))
        return any(True for ways in runs for _ in ways)

    def options(self, holder: str) -> tuple[Option, ...]:
        """All options of a holder, on every kind that has the devices for them."""
        inside = self._offered(holder, across=False)
        return inside if inside and not self.across else (*inside, *self._offered(holder, across=True))

    def of_plan(self, holder: str, kind: int, plan: StagePlan) -> Option:
        """A stage plan with its costs on the devices that it names, whether it fits or not."""
        run = self.planned(holder, kind, plan)
        quantum = min(run.tp, run.hardware.devices_per_node)
        return self._option(holder, kind, run, quantum, self.memory(holder, kind, run))

    def planned(self, holder: str, kind: int, plan: StagePlan) -> Execution:
        """How a stage plan runs, with the links between the devices that it names."""
        run = self._run(holder, kind, plan.layout.tp, plan.layout.pp, plan.dp, plan.layout.ep)
        recompute = Recompute.FULL if plan.recompute else Recompute.NONE
        run = replace(run, micro_batch=plan.micro_batch, zero1=plan.zero1, recompute=recompute)
        in_nodes = Counter(self._node_of[device] for device in plan.devices)
        return self._degrees(holder, kind, across=False).lying(run, tuple(in_nodes.values()))

    @cached_property
    def _node_of(self) -> tuple[int, ...]:
        """The node of each device, as the outline lists them."""
        sizes = [group.devices for group in self.outline.nodes for _ in range(group.count)]
        return tuple(node for node, size in enumerate(sizes) for _ in range(size))

    def at_lengths(self, option: Option) -> Option:
        """An option with the memory that it takes at this outline's lengths, whether that fits or not."""
        return replace(option, memory=self.memory(option.holder, option.kind, option.run))

    def _option(self, holder: str, kind: int, run: Execution, quantum: int, memory: Mapping[Component, float]) -> Option:
        seconds = {stage: self.seconds(stage, kind, run) for stage in self.outline.workflow.roles(holder)}
        return Option(
            holder=holder,
            kind=kind,
            run=run,
            quantum=quantum,
            seconds=seconds,
            memory=memory,
            host_bytes=ceil(offloaded_bytes(run, self.architecture(holder))),
            pinned=holder in self.outline.pins,
        )

    def _offered(self, holder: str, *, across: bool) -> tuple[Option, ...]:
        """What fits, with TP inside nodes or over several."""
        found = []
        for kind in range(len(self.kinds)):
            most = self.usable_bytes(kind)
            for run, degrees in self._runs(holder, kind, across=across):
                memory = self.memory(holder, kind, run)
                if sum(memory.values()) <= most:
                    quanta = degrees.quanta(run)
                    found += [self._option(holder, kind, held, quantum, memory) for quantum, held in quanta]
        return tuple(found)

    def _runs(self, holder: str, kind: int, *, across: bool) -> Iterator[tuple[Execution, Degrees]]:
        """Every way to run a holder on a kind, whatever memory it takes."""
        degrees = self._degrees(holder, kind, across=across)
        for tp, pp, dp, ep in degrees.degrees():
            run = self._run(holder, kind, tp, pp, dp, ep)
            run = replace(run, zero1=degrees.zero1(run.shares))
            for way in degrees.ways(run):
                yield way, degrees

    def _degrees(self, holder: str, kind: int, *, across: bool) -> Degrees:
        return Degrees(
            decoder=self.architecture(holder).decoder,
            groups=self.groups(kind),
            workload=self.outline.workload,
            micro_batches=self.outline.micro_batches,
            trains=self.trains(holder),
            generates=self.outline.workflow.stage(holder).role == GENERATION,
            pin=self.outline.pin(holder),
            across=across,
        )

    def _run(self, holder: str, kind: int, tp: int, pp: int, dp: int, ep: int) -> Execution:
        """A holder with these degrees, on mean lengths."""
        return Execution(
            hardware=self.hardware(kind),
            tp=tp,
            pp=pp,
            dp=dp,
            ep=ep,
            sequences=self.outline.workload.global_batch,
            tokens=self.outline.workload.prompt_tokens + self.outline.workload.response_tokens,
            sequence_parallel=self.outline.sequence_parallel and tp > 1,
            zero1=dp * ep > 1 and self.trains(holder),
            regime=REGIMES[self.outline.framework],
        )
