"""Object references of calls in flight, and the events that they turn into."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from queue import Queue
from threading import Thread
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError, RayTaskError

from nereus.control.events import EndpointDied, Event, OpFailed
from nereus.layout.catalog import EndpointId

Failure = Callable[[str], Event]
"""The event for a call that failed, from the reason."""

POLL_S = 0.05
"""Seconds after which newly submitted calls are waited for as well: a call takes at least a millisecond."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that is waited for."""

    endpoint: EndpointId
    what: str
    failure: Failure | None
    deadline_s: float
    ends_s: float
    """When its deadline is over, on the monotonic clock."""

    def failed(self, reason: str) -> Event:
        return self.failure(reason) if self.failure else OpFailed(endpoint=self.endpoint, op=self.what, error=reason)


class Completions:
    """Waits for calls on a thread of its own and posts what they return; a death and an error are events too."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self._new: Queue[tuple[Any, _Call]] = Queue()
        self._pending: dict[Any, _Call] = {}

    def start(self) -> None:
        """Start to wait."""
        Thread(target=self._run, name="completions", daemon=True).start()

    def add(
        self,
        ref: Any,
        endpoint: EndpointId,
        what: str,
        failure: Failure | None = None,
        deadline_s: float = inf,
    ) -> None:
        """Wait for a call on an endpoint; `what` names it if it fails, and `failure` makes another event of that.

        A call that has not returned within `deadline_s` has failed; what it returns later is nobody's.
        """
        self._new.put((ref, _Call(endpoint, what, failure, deadline_s, time.monotonic() + deadline_s)))

    def _run(self) -> None:
        while True:
            block = not self._pending
            while block or not self._new.empty():
                ref, made = self._new.get()
                self._pending[ref] = made
                block = False
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL_S)
            for ref in ready:
                self._post(self._event(ref))
            for ref in [ref for ref, made in self._pending.items() if made.ends_s < time.monotonic()]:
                late = self._pending.pop(ref)
                self._post(late.failed(f"it has not answered within {late.deadline_s:g} s"))

    def _event(self, ref: Any) -> Event:
        made = self._pending.pop(ref)
        try:
            event: Event = ray.get(ref)
        except (RayActorError, ActorUnschedulableError):
            return made.failure("it died") if made.failure else EndpointDied(endpoint=made.endpoint, during=made.what)
        except RayTaskError as error:
            cause = error.cause or error
            return made.failed((str(cause).strip() or type(cause).__name__).splitlines()[0])
        except RayError as error:
            # Its answer is lost, as with a node's object store: to the loop that is a call that failed.
            return made.failed(f"{type(error).__name__}: {error}".splitlines()[0])
        return event
