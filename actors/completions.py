"""Object references of calls in flight, and the events that they turn into."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from nereus.control.events import EndpointDied, Event, OpFailed
from nereus.layout.catalog import EndpointId

POLL_S = 0.05
"""Seconds after which newly submitted calls are waited for as well: a call takes at least a millisecond."""


class Completions:
    """Waits for calls on a thread of its own and posts what they return; a death and an error are events too."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self._new: Queue[tuple[Any, EndpointId, str]] = Queue()
        self._pending: dict[Any, tuple[EndpointId, str]] = {}

    def start(self) -> None:
        """Start to wait."""
        Thread(target=self._run, name="completions", daemon=True).start()

    def add(self, ref: Any, endpoint: EndpointId, what: str) -> None:
        """Wait for a call on an endpoint; `what` names it if it fails."""
        self._new.put((ref, endpoint, what))

    def _run(self) -> None:
        while True:
            block = not self._pending
            while block or not self._new.empty():
                ref, endpoint, what = self._new.get()
                self._pending[ref] = endpoint, what
                block = False
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL_S)
            for ref in ready:
                self._post(self._event(ref))

    def _event(self, ref: Any) -> Event:
        endpoint, what = self._pending.pop(ref)
        try:
            event: Event = ray.get(ref)
        except RayActorError:
            return EndpointDied(endpoint=endpoint, during=what)
        except RayTaskError as error:
            return OpFailed(endpoint=endpoint, op=what, error=str(error.cause or error).splitlines()[0])
        return event
