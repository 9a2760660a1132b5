"""What Ray does not say is not taken for an end: a job is over when its runner is, not while nobody answers for it."""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, ObjectLostError, RayTaskError

import actors.leaving
import actors.office
import actors.runners
from actors.api import ControllerJobs
from actors.completions import Completions
from actors.controller import CONTROLLER
from actors.office import Office
from actors.runners import Runners
from nereus.control.events import DeviceReady, Event, OpFailed
from nereus.errors import NereusError
from nereus.runtime.cluster_ports import Look


class Handle:
    """Of a runner; its method answers with itself, which Ray is then asked for."""

    look = property(lambda self: self)

    def options(self, **_: Any) -> Handle:
        return self

    def remote(self, *_: Any) -> Handle:
        return self


def ray_says(patch: pytest.MonkeyPatch, error: Exception, *, found: bool) -> None:
    """What Ray answers: to the question for a name, or once the actor is found, to its call."""

    def raises(*_: Any, **__: Any) -> Any:
        raise error

    patch.setattr("ray.get_actor", (lambda *_: Handle()) if found else raises)
    patch.setattr("ray.wait", lambda calls, **_: (calls, []))
    patch.setattr("ray.get", raises)


def test_a_runner_that_ray_does_not_name_in_time_has_not_died(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_says(monkeypatch, GetTimeoutError("the GCS server is dead or under high load"), found=False)
    with pytest.raises(GetTimeoutError):
        Runners(Path("nowhere")).looks(["job"])


def test_a_runner_that_cannot_be_reached_now_has_not_died(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_says(monkeypatch, ActorUnavailableError("the connection broke", b"0" * 16), found=True)
    assert Runners(Path("nowhere")).looks(["job"]) == {"job": Look()}


def test_a_runner_that_is_not_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_says(monkeypatch, ValueError("no such actor"), found=False)
    assert Runners(Path("nowhere")).looks(["job"]) == {"job": None}


def test_a_runner_that_died_has_failed_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_says(monkeypatch, ActorDiedError(), found=True)
    look = Runners(Path("nowhere")).looks(["job"])["job"]
    assert look is not None
    assert look.outcome is not None
    assert look.outcome.state == "failed"


def test_the_api_takes_it_for_a_controller_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_says(monkeypatch, GetTimeoutError("the GCS server is dead or under high load"), found=False)
    with pytest.raises(ConnectionError):
        ControllerJobs(CONTROLLER).names()


def test_a_node_is_not_free_while_the_controller_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*_: Any) -> Any:
        raise NereusError("the controller does not answer; ask again in a moment")

    monkeypatch.setattr(Office, "ask", no_answer)
    monkeypatch.setattr(actors.office, "living", lambda: Office(None))
    assert actors.leaving._granted("a") > 0
    monkeypatch.setattr(actors.office, "living", lambda: None)
    assert actors.leaving._granted("a") == 0


def test_an_answer_that_is_lost_is_a_call_that_failed_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = failure(monkeypatch, ObjectLostError("ab" * 28, None, ""))
    assert (failed.endpoint, failed.op) == ("d0.0", "Split")
    assert failed.error.startswith("ObjectLostError: ")


def test_an_error_without_a_word_is_named_by_its_kind_and_the_next_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(monkeypatch, RayTaskError("split", "a traceback", AssertionError())).error == "AssertionError"


def failure(patch: pytest.MonkeyPatch, error: Exception) -> OpFailed:
    """What a call that ends with an error is to the loop; the answer of the next call follows."""
    ready, posted = DeviceReady(device=1, endpoint="d1.0", peak_flops=1.0), Queue[Event]()

    def answer(call: str) -> Event:
        if call == "lost":
            raise error
        return ready

    patch.setattr("ray.wait", lambda calls, **_: (calls[:1], calls[1:]))
    patch.setattr("ray.get", answer)
    completions = Completions(posted.put)
    completions.start()
    completions.add("lost", "d0.0", "Split")
    completions.add("kept", "d1.0", "Split")
    failed = posted.get(timeout=10)
    assert isinstance(failed, OpFailed)
    assert posted.get(timeout=10) == ready
    return failed
