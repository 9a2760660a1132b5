"""What watchers are told beforehand: what the job is, and that the planner has answered."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from nereus.control.announced import JobDescribed, Replanned
from nereus.control.effects import Decision, DevicesChanged, News, Publish
from nereus.control.events import PlanReady, PoolChanged, ReplanRequested
from nereus.layout.tensors import Kind
from tests.control.harness import Core
from tests.runtime.loop import adaptive_config, scripted_config


def told(core: Core) -> list[News]:
    return [effect.news for effect in core.effects if isinstance(effect, Publish)]


def replans(core: Core) -> list[Replanned]:
    return [news for news in told(core) if isinstance(news, Replanned)]


def test_job_is_described_once_and_before_all_else() -> None:
    core = Core(scripted_config()).start(range(6))
    core.boundary()
    core.settle()
    described, *rest = told(core)
    config = core.state.config
    tensors = config.states[config.trains].tensors
    assert described == JobDescribed(
        algorithm="grpo",
        mode="sync",
        num_steps=config.num_steps,
        num_parameters=sum(prod(tensor.shape) for tensor in tensors if tensor.kind is Kind.PARAMETER),
        usable_bytes=config.prior.usable_bytes,
    )
    assert not any(isinstance(news, JobDescribed) for news in rest)
    assert isinstance(rest[0], DevicesChanged)


def test_each_replan_is_told_with_its_signals_before_its_verdicts() -> None:
    core = Core(adaptive_config()).start(range(4))
    core.boundary()
    core.settle()
    core.post(PoolChanged(step=1, arriving=(4, 5, 6, 7), leaving={}))
    core.settle()
    core.boundary()
    core.settle()
    (replan,) = replans(core)
    (answer,) = [event for event, _ in core.events if isinstance(event, PlanReady)]
    assert replan == Replanned(
        step=2,
        cycle=answer.cycle,
        signals=("pool",),
        num_proposals=len(answer.proposals),
        current_l_step_s=answer.current_l_step_s,
        seconds=answer.seconds,
    )
    of_cycle = [type(n) for n in told(core) if isinstance(n, Replanned | Decision)]
    assert of_cycle == [Replanned, *[Decision] * len(core.decisions)]


def test_replan_of_an_operator_is_told_as_no_signal() -> None:
    core = Core(adaptive_config()).start(range(4))
    core.boundary()
    core.settle()
    core.post(ReplanRequested(command="a", dry_run=True, forced=False))
    core.settle()
    core.boundary()
    core.settle()
    assert [replan.signals for replan in replans(core)] == [("operator",)]


def test_replans_are_told_in_the_order_of_their_cycles() -> None:
    core = Core(adaptive_config()).start(range(4))
    for tokens in (6.0, 9.0, 12.0, 18.0):
        core.boundary(tokens)
        core.settle()
    cycles = [replan.cycle for replan in replans(core)]
    assert len(cycles) > 1
    assert all(before < after for before, after in pairwise(cycles))
    assert {replan.signals for replan in replans(core)} <= {("length",), ("memory",), ("memory", "length")}
