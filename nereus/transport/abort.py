"""Abort from outside: a key in the rendezvous store, watched by a thread of every process that holds shards.

    request_abort(store, endpoints) -> abort/<endpoint>/<n> -> AbortWatch -> Communicators.abort()

It works in any process, ours or a framework's, while its lanes are blocked in a collective or hold the interpreter in
turn. That blocked operations then fail rests on observed behaviour of Gloo, which a test pins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from threading import Event, Thread

from torch.distributed import DistStoreError, Store  # type: ignore[attr-defined]

from nereus.errors import StoreError
from nereus.layout.catalog import EndpointId

LISTEN = timedelta(hours=1)
"""How long one wait for a key lasts; torch logs a warning at the end of each, so it is long."""


ANSWER_POLL_S = 0.002
"""Pause between two looks for the answers; an abort takes about 10 ms."""


def request_abort(store: Store, endpoints: Iterable[EndpointId]) -> dict[EndpointId, int]:
    """Unblock every collective of these endpoints. Returns at once, with the number of each one's request."""
    requests: dict[EndpointId, int] = {}
    for endpoint in endpoints:
        requests[endpoint] = store.add(f"abort/{endpoint}/count", 1) - 1
        store.set(_key(endpoint, requests[endpoint]), "1")
    return requests


def await_aborts(store: Store, requests: Mapping[EndpointId, int], timeout_s: float) -> frozenset[EndpointId]:
    """Wait until these requests are carried out; returns the endpoints that did not answer in time, such as dead ones.

    A group that is made before that may be broken by the abort that is still on its way.
    """
    deadline = time.monotonic() + timeout_s
    waiting = {endpoint: _done(endpoint, number) for endpoint, number in requests.items()}
    while waiting and not store.check(list(waiting.values())):
        if time.monotonic() > deadline:
            return frozenset(endpoint for endpoint, key in waiting.items() if not store.check([key]))
        time.sleep(ANSWER_POLL_S)
    return frozenset()


class AbortWatch:
    """Waits for abort requests on a client of its own, and calls `on_abort` for each, on its own thread."""

    def __init__(self, connect: Callable[[], Store], endpoint: EndpointId, on_abort: Callable[[], None]) -> None:
        self.endpoint = endpoint
        self.num_aborts = 0
        """Requests that were carried out."""
        self.error: Exception | None = None
        """Why the watch ended by itself: the store is gone, or `on_abort` failed."""
        self._connect = connect
        self._on_abort = on_abort
        self._next = 0
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Connect and start to watch. Raises StoreError when it watches already, RuntimeError without a store."""
        if self._thread is not None:
            raise StoreError(f"endpoint {self.endpoint}: the abort watch runs already")
        self._stopped.clear()
        self._thread = Thread(target=self._watch, args=(self._connect(),), name=f"abort-{self.endpoint}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch; returns when its thread has ended. Nothing happens when it does not run."""
        if self._thread is None:
            return
        self._stopped.set()
        if self._thread.is_alive():
            request_abort(self._connect(), [self.endpoint])
        self._thread.join()
        self._thread = None

    def _watch(self, store: Store) -> None:
        try:
            while not self._stopped.is_set():
                if _wait(store, _key(self.endpoint, self._next)):
                    self._next += 1
                    if not self._stopped.is_set():
                        self._on_abort()
                        self.num_aborts += 1
                        store.set(_done(self.endpoint, self._next - 1), "1")
        except Exception as error:
            self.error = error


def _wait(store: Store, key: str) -> bool:
    """Whether the key was set while we listened."""
    try:
        store.wait([key], LISTEN)
    except DistStoreError:
        return False
    return True


def _key(endpoint: EndpointId, number: int) -> str:
    return f"abort/{endpoint}/{number}"


def _done(endpoint: EndpointId, number: int) -> str:
    return f"{_key(endpoint, number)}/done"
