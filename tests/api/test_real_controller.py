"""The API over the real decision core, journal and planner on a simulated world: what they tell is what it shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nereus.control.effects import News
from nereus.control.events import ReplanRequested
from nereus.runtime.controller import ReplanCommand
from nereus.runtime.summary import plan_dict
from tests.api.served import Api, FakeController, served
from tests.runtime.loop import POOL, Loop, adaptive_config
from tests.runtime.world import World

STEPS = 6


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    """Six steps of a job that goes from four devices to eight and to six."""
    found = Loop(World(adaptive_config(), holds_values=False), tmp_path / "journal.sqlite", pool=POOL)
    found.run(STEPS)
    yield found
    found.close()


@pytest.fixture
def real(loop: Loop) -> Iterator[Api]:
    """Its API; a command goes to the core and on to the planner."""

    def ask(command: ReplanCommand) -> Iterable[News]:
        told = len(loop.news)
        loop.post(ReplanRequested(command=command.id, dry_run=command.dry_run, forced=command.forced))
        while (fact := loop.world.next_fact()) is not None:
            loop.post(fact)
        return loop.news[told:]

    controller = FakeController(loop.news)
    controller.on_submit = ask
    with served(controller) as found:
        yield found


def test_plan_and_devices_are_those_of_the_core(real: Api, loop: Loop) -> None:
    state = loop.state
    found = real.get("/api/v1/plan").body
    assert (found["epoch"], found["stages"]) == (state.plan.epoch, plan_dict(state.plan))
    devices = real.get("/api/v1/devices").body["items"]
    assert {d["device"]: d["endpoint"] for d in devices} == state.endpoint_of
    assert {d["device"] for d in devices if d["state"] == "leaving"} == set(state.leaving)
    assert {d["device"] for d in devices if d["model_stages"]} == state.plan.devices
    assert real.get("/api/v1/steps/latest").body["step"] == STEPS


def test_each_transition_follows_a_decision(real: Api) -> None:
    transitions = real.get("/api/v1/transitions").body["items"]
    admitted = [d for d in real.get("/api/v1/decisions").body["items"] if d["admitted"]]
    assert transitions
    assert [t["epoch"] for t in transitions] == list(range(len(transitions), 0, -1))
    assert {tuple(t["primitives"].items()) for t in transitions} <= {tuple(d["primitives"].items()) for d in admitted}


def test_dry_run_is_decided_and_changes_nothing(real: Api) -> None:
    before = real.get("/api/v1/plan").body
    where = real.post("/api/v1/replans", {"dry_run": True}).headers["Location"]
    real.wait_until_told()
    found = real.get(where).body
    assert found["state"] == "decided"
    assert {(decision["step"], decision["dry_run"]) for decision in found["decisions"]} == {(STEPS, True)}
    others = [d for d in real.get("/api/v1/decisions").body["items"] if d not in found["decisions"]]
    assert {decision["dry_run"] for decision in others} == {False}
    assert real.get("/api/v1/plan").body == before
