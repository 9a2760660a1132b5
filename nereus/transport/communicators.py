"""The pool of communicators of one endpoint, keyed by (sorted members, lane).

    ensure(keys) -> all members ready? -> process group over the prefix tag/lane/members#n -> get(key)

A group outlives the transition that made it and is used again by the next one that needs the same members. A group
that was broken, by an abort or by a failed set-up, is marked in the store, so that no member takes it for a live one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from nereus.errors import StoreError, TransitionFailed
from nereus.layout.catalog import EndpointId
from nereus.transition.collectives import GroupKey
from nereus.transport.communicator import Communicator
from nereus.transport.process_group import break_process_group, clone_store, close_process_group, new_process_group

READY_POLL_S = 0.001
"""Pause between two looks for absent members; each look is one request of about 0.1 ms to the store."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What the pool has done since it was made."""

    made: int = 0
    reused: int = 0
    setup_s: float = 0.0


@dataclass(slots=True)
class _Entry:
    name: str
    communicator: Communicator


class Communicators:
    """The live groups of an endpoint. `abort` may be called from any thread, the rest from one thread per lane."""

    def __init__(self, store: Store, endpoint: EndpointId, device: torch.device, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.device = device
        self.timeout_s = timeout_s
        self.stats = PoolStats()
        self._store = store
        self._entries: dict[GroupKey, _Entry] = {}
        self._attempts: dict[str, int] = {}
        self._num_aborts = 0
        self._lock = Lock()

    def keys(self) -> frozenset[GroupKey]:
        """The groups that are ready."""
        with self._lock:
            return frozenset(self._entries)

    def ensure(self, keys: Iterable[GroupKey], tag: str) -> tuple[int, int]:
        """Make the groups that are missing; returns (made, reused). Blocks until the other members make them too.

        Every member calls it with the same tag and, for each group, as often as the others. Groups are made in sorted
        order, the same everywhere, so that making them cannot deadlock. Raises TransitionFailed when a member does not
        come within the time-out or an abort arrives; what this call made is then forgotten.
        """
        start, aborts, made, reused = time.perf_counter(), self._num_aborts, 0, 0
        fresh: list[GroupKey] = []
        try:
            for key in sorted(set(keys)):
                if self._is_live(key):
                    reused += 1
                    continue
                entry = self._make(key, tag, aborts)
                with self._lock:
                    self._entries[key] = entry
                fresh.append(key)
                made += 1
                self._refuse_if_aborted(key, aborts)
        except BaseException:
            self._break(fresh)
            raise
        finally:
            elapsed = time.perf_counter() - start
            self.stats = PoolStats(self.stats.made + made, self.stats.reused + reused, self.stats.setup_s + elapsed)
        return made, reused

    def get(self, key: GroupKey) -> Communicator:
        """A group that `ensure` has made. Raises StoreError if it is not there, or was aborted."""
        with self._lock:
            entry = self._entries.get(key)
        if entry is None:
            raise StoreError(
                f"endpoint {self.endpoint} has no group {list(key.members)} in lane {key.lane}: "
                "it was never installed, was dropped, or was aborted; install a program that names it"
            )
        return entry.communicator

    def drop(self, keep: Iterable[GroupKey]) -> None:
        """Forget every group but these. Nothing may be running on them."""
        kept = frozenset(keep)
        with self._lock:
            gone = [self._entries.pop(key) for key in list(self._entries) if key not in kept]
        for entry in gone:
            if entry.communicator.process_group is not None:
                close_process_group(entry.communicator.process_group, self.device)

    def abort(self) -> None:
        """Unblock everything that is blocked on a group, a set-up included, and forget all groups. Any thread."""
        self._num_aborts += 1
        self._break(self.keys())

    def _is_live(self, key: GroupKey) -> bool:
        with self._lock:
            entry = self._entries.get(key)
        if entry is None:
            return False
        if entry.communicator.size == 1 or not self._store.check([_mark(entry.name)]):
            return True
        self._break([key])
        return False

    def _make(self, key: GroupKey, tag: str, aborts: int) -> _Entry:
        if self.endpoint not in key.members:
            raise StoreError(f"endpoint {self.endpoint} is not in group {list(key.members)} and cannot make it")
        rank, size = key.members.index(self.endpoint), len(key.members)
        name = f"{tag}/{key.lane}/{'+'.join(key.members)}"
        attempt = self._attempts[name] = self._attempts.get(name, 0) + 1
        name = f"{name}#{attempt}"
        if size == 1:
            return _Entry(name, Communicator(key, self.endpoint, None, self.device, self.timeout_s))
        self._await_members(key, name, aborts)
        group = new_process_group(name, self._store, rank, size, self.device, self.timeout_s)
        return _Entry(name, Communicator(key, self.endpoint, group, self.device, self.timeout_s))

    def _await_members(self, key: GroupKey, name: str, aborts: int) -> None:
        """Wait until every member is about to make the group: a wait that an abort ends, unlike the backend's own."""
        ready = {member: f"{name}/ready/{member}" for member in key.members}
        self._store.set(ready[self.endpoint], "1")
        deadline = time.monotonic() + self.timeout_s
        while not self._store.check(list(ready.values())):
            self._refuse_if_aborted(key, aborts)
            if time.monotonic() > deadline:
                absent = [member for member, where in ready.items() if not self._store.check([where])]
                raise TransitionFailed(f"group {list(key.members)}: {absent} did not come within {self.timeout_s} s")
            time.sleep(READY_POLL_S)

    def _refuse_if_aborted(self, key: GroupKey, aborts: int) -> None:
        if self._num_aborts != aborts:
            raise TransitionFailed(f"group {list(key.members)} was aborted while it was being made")

    def _break(self, keys: Iterable[GroupKey]) -> None:
        """Break groups, forget them, and tell their other members through the store."""
        with self._lock:
            gone = [self._entries.pop(key) for key in sorted(keys) if key in self._entries]
        shared = [e for e in gone if e.communicator.process_group is not None]
        for entry in shared:
            assert entry.communicator.process_group is not None
            break_process_group(entry.communicator.process_group, entry.communicator.rank, self.device)
        if shared:
            with suppress(RuntimeError):  # without the store no group can be made any more, so no mark is missed
                store = clone_store(self._store)
                for entry in shared:
                    store.set(_mark(entry.name), "1")


def _mark(name: str) -> str:
    return f"{name}/broken"


__all__ = ["Communicator", "Communicators", "PoolStats"]
