"""What happens to the pool over time: a step function of counts becomes notices, departures and arrivals of devices.

    AvailabilityTrace, devices, notice -> Timeline -> PoolEvent, in order of time

Devices leave from the end of the pool and arrive at its beginning, as in the emulated pool of a native job; a count above
the pool's size is the whole pool. Nobody but the world knows what comes: a notice is the first that a job hears of it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum

from nereus.emu.plan import DeviceId
from nereus.spec.traces import AvailabilityTrace


class Change(IntEnum):
    """What happens to devices; in this order where it happens at one time."""

    GONE = 0
    ARRIVED = 1
    NOTICE = 2
    """Last: a device may leave so soon that it is told when it arrives."""


@dataclass(frozen=True, slots=True, order=True)
class PoolEvent:
    """Devices that come or go."""

    time_s: float
    change: Change
    devices: tuple[DeviceId, ...]
    gone_s: float = 0.0
    """Of a notice: when they are gone."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The pool over a run."""

    start: tuple[DeviceId, ...]
    """Devices that are there at the beginning."""
    events: tuple[PoolEvent, ...]
    duration_s: float

    @classmethod
    def of(cls, trace: AvailabilityTrace, num_devices: int, notice_s: float) -> Timeline:
        """A pool of at most `num_devices` whose departures are known `notice_s` before, or, with 0, never."""
        begin = trace.points[0][0]
        there = list(range(min(trace.points[0][1], num_devices)))
        arrived_s = dict.fromkeys(there, 0.0)
        start, events = tuple(there), []
        for time, count in trace.points[1:]:
            at, wanted = time - begin, min(count, num_devices)
            leaving = tuple(sorted(there[wanted:]))
            if leaving:
                known = max(at - notice_s, max(arrived_s[device] for device in leaving))
                if known < at:
                    events.append(PoolEvent(known, Change.NOTICE, leaving, at))
                events.append(PoolEvent(at, Change.GONE, leaving))
            absent = [device for device in range(num_devices) if device not in there]
            arriving = tuple(absent[: max(wanted - len(there), 0)])
            if arriving:
                events.append(PoolEvent(at, Change.ARRIVED, arriving))
                arrived_s.update(dict.fromkeys(arriving, at))
            there = sorted({*there, *arriving}.difference(leaving))
        return cls(start, tuple(sorted(events)), trace.duration_s)

    def between(self, after_s: float, until_s: float) -> tuple[PoolEvent, ...]:
        """What happens in (after, until]."""
        first = bisect_right(self.events, after_s, key=lambda event: event.time_s)
        last = bisect_right(self.events, until_s, key=lambda event: event.time_s)
        return self.events[first:last]

    def there(self, time_s: float) -> tuple[DeviceId, ...]:
        """The devices that are there at a time, those on notice included."""
        found = set(self.start)
        for event in self.between(float("-inf"), time_s):
            if event.change is Change.ARRIVED:
                found.update(event.devices)
            elif event.change is Change.GONE:
                found.difference_update(event.devices)
        return tuple(sorted(found))
