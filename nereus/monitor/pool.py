"""A pool that changes on schedule: which devices arrive, get notice and are gone at each boundary.

    counts by steps -> PoolEmulator --changes(step)--> PoolNews -> the loop starts workers, tells the core, ends workers

              absent --arriving--> there --leaving (notice)--> there, on notice --notice_steps later: gone--> absent

Pure: the news is a function of the step and the schedule, so a restarted controller or a replay gets the same. Devices leave
from the end of the pool, the last node empties first, and they arrive from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.control.events import PoolChanged
from nereus.errors import UserError


@dataclass(frozen=True, slots=True)
class PoolNews:
    """What happens to the pool at one boundary. A device is in one of the three at most."""

    arriving: tuple[int, ...] = ()
    """Devices that start now, in node order; each can be used when its worker is ready."""
    leaving: Mapping[int, int] = field(default_factory=dict)
    """Device that gets its notice now -> the step after which it is gone."""
    gone: tuple[int, ...] = ()
    """Devices whose notice ran out: there up to this boundary, not after it."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.arriving or self.leaving or self.gone)


@dataclass(frozen=True, slots=True)
class PoolState:
    """The pool after a boundary."""

    step: int
    """Completed RL steps."""
    there: tuple[int, ...]
    """Devices that are there, those on notice included, in node order."""
    leaving: Mapping[int, int] = field(default_factory=dict)
    """Device on notice -> the step after which it is gone."""

    @property
    def staying(self) -> tuple[int, ...]:
        """Devices that are there and not on notice: those that a plan may use."""
        return tuple(device for device in self.there if device not in self.leaving)


@dataclass(frozen=True, slots=True)
class PoolEmulator:
    """A pool that follows a schedule of counts.

    A notice is carried out even if the count rises again before its end (spot notices are not taken back); other devices
    arrive instead, and the same one may arrive again at a boundary after the one where it was gone. So after each boundary
    as many devices stay as the schedule says, or fewer while every other device is on notice or just gone.
    """

    counts: tuple[int, ...]
    """Devices that the pool should have after 0, 1, ... completed steps; the last one holds on."""
    devices: tuple[int, ...]
    """All devices that the pool can have, in node order."""
    notice_steps: int
    """RL steps between notice and end, at least 1."""

    def __post_init__(self) -> None:
        if not self.counts or not 0 <= min(self.counts) <= max(self.counts) <= len(self.devices):
            raise UserError(f"counts: {self.counts} is not allowed; each must be from 0 to the {len(self.devices)} devices")
        if self.notice_steps < 1:
            raise UserError(f"notice_steps: {self.notice_steps} is not allowed; it must be at least 1")

    def start(self) -> tuple[int, ...]:
        """The devices that are there when the job starts: the first ones."""
        return self.devices[: self.counts[0]]

    def changed(self, step: int, ahead: int) -> PoolChanged:
        """What the job is told after `step` completed steps, when the pool is `ahead` of them by so many of its own."""
        news = self.changes(step + ahead)
        return PoolChanged(
            step=step,
            arriving=tuple(news.arriving),
            leaving={device: end - ahead for device, end in news.leaving.items()},
            gone=tuple(news.gone),
            ahead=ahead,
            ended=step + ahead >= len(self.counts) + self.notice_steps,
        )

    def changes(self, step: int) -> PoolNews:
        """What happens at the boundary after `step` completed steps; nothing at step 0, the start."""
        if step == 0:
            return PoolNews()
        return self.advance(self.state(step - 1))[1]

    def state(self, step: int) -> PoolState:
        """The pool after the boundary of `step`, told from the start."""
        state = PoolState(0, self.start())
        while state.step < step:
            state, _ = self.advance(state)
        return state

    def advance(self, state: PoolState) -> tuple[PoolState, PoolNews]:
        """The next boundary: the pool after it, and what happens there."""
        step = state.step + 1
        gone = tuple(device for device in state.there if state.leaving.get(device) == step)
        surplus = len(state.staying) - self.counts[min(step, len(self.counts) - 1)]
        noticed = dict.fromkeys(state.staying[::-1][: max(surplus, 0)], step + self.notice_steps)
        absent = [device for device in self.devices if device not in state.there]
        arriving = tuple(absent[: max(-surplus, 0)])
        there = {*state.there, *arriving}.difference(gone)
        leaving = {device: end for device, end in {**state.leaving, **noticed}.items() if device not in gone}
        ordered = tuple(device for device in self.devices if device in there)
        return PoolState(step, ordered, leaving), PoolNews(arriving, noticed, gone)
