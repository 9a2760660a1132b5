"""Operations go to their endpoints in the order of dispatch: what is ready early does not take a lane before its turn."""

from __future__ import annotations

from nereus.control.carrying import Carrying, Leg, Task, advance
from nereus.control.effects import Effect, RunOp
from nereus.control.events import Installed, OpCompleted
from nereus.emu.unit import Emu
from nereus.layout.catalog import UnitId
from nereus.layout.layout import Layout
from nereus.transition.ops import Op, Program, Transition


def op(name: str, endpoints: str, after: tuple[str, ...] = ()) -> Op:
    """An operation that makes a unit on these endpoints, one a letter."""
    emu = Emu(UnitId(name, 0, 1), Layout(len(endpoints)), tuple(endpoints))
    return Op(name, ("Extend",), name, (emu,), (), (), (), after)


def installed(*ops: Op) -> tuple[Carrying, list[str]]:
    """A transition of which every endpoint has its program, and the operations that were asked for."""
    endpoints = sorted({endpoint for each in ops for endpoint in each.members})
    task = Task(
        epoch=1,
        transition=Transition(ops, ()),
        programs=tuple(Program(1, endpoint, (), ()) for endpoint in endpoints),
        before=(),
        bound=(),
        keep=frozenset(),
    )
    carrying = Carrying(task=task, leg=Leg.INSTALL, waiting=frozenset(endpoints))
    effects: tuple[Effect, ...] = ()
    for endpoint in endpoints:
        ready = Installed(endpoint=endpoint, epoch=1, setup_s=0.0, groups_made=0, groups_reused=0)
        carrying, effects = advance(carrying, ready, {}, 0.0)
    return carrying, asked(effects)


def asked(effects: tuple[Effect, ...]) -> list[str]:
    return [effect.op.id for effect in effects if isinstance(effect, RunOp)]


def completed(carrying: Carrying, name: str, endpoint: str) -> tuple[Carrying, list[str]]:
    done = OpCompleted(op=name, endpoint=endpoint, bytes_received=0, seconds=1.0)
    carrying, effects = advance(carrying, done, {}, 0.0)
    return carrying, asked(effects)


def test_ready_operation_waits_for_one_ahead_of_it_that_is_not() -> None:
    """b waits for a; c is ready, and would hold endpoint y when b comes."""
    carrying, first = installed(op("a", "x"), op("b", "y", ("a",)), op("c", "y"))
    assert first == ["a"]
    assert completed(carrying, "a", "x")[1] == ["b", "c"]


def test_ready_operation_on_other_endpoints_is_not_held_back() -> None:
    _, first = installed(op("a", "x"), op("b", "y", ("a",)), op("c", "z"))
    assert first == ["a", "c"]


def test_operation_that_is_held_back_holds_back_those_behind_it() -> None:
    """d shares no endpoint with b, but with c, which is behind b."""
    carrying, first = installed(op("a", "x"), op("b", "y", ("a",)), op("c", "yz"), op("d", "z"))
    assert first == ["a"]
    assert completed(carrying, "a", "x")[1] == ["b", "c", "d"]


def test_operations_ahead_that_run_already_hold_nothing_back() -> None:
    """The lane of the endpoint puts them one after the other."""
    assert installed(op("a", "x"), op("b", "x"))[1] == ["a", "b"]
