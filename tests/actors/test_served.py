"""The API of a controller that is asked to serve with each look. No Ray is started: what it answers is told."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from actors.served import Served

ANSWERS: list[tuple[str, int] | Exception] = [
    RayTaskError("start", "a traceback", OSError("port 8420 is taken")),
    RayTaskError("start", "a traceback", OSError("port 8420 is taken")),
    ActorDiedError(),
    ("127.0.0.1", 8420),
]


class Actor:
    """The API's: whatever is asked of it returns it."""

    def __getattr__(self, _: str) -> Actor:
        return self

    def __call__(self, *_: Any, **__: Any) -> Actor:
        return self


def test_an_api_that_does_not_serve_is_told_until_it_does_and_no_look_fails_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(ANSWERS)

    def answer(_: Actor) -> tuple[str, int]:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("ray.remote", lambda **_: lambda _: Actor())
    monkeypatch.setattr("ray.wait", lambda calls, **_: (calls, []))
    monkeypatch.setattr("ray.get", answer)
    served, told = Served("api", "controller", "0.0.0.0", 8420, None), []
    for _ in range(2 * len(ANSWERS)):
        served.keep(anew=True)
        told.append(served.failed)
    taken = "its API does not serve: port 8420 is taken"
    assert told[1:5] == [taken] * 4, "not only in every other look"
    assert str(told[5]).startswith("its API does not serve: ")
    assert told[7] is None
    assert served.url == "http://127.0.0.1:8420"
