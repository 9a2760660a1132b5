"""The pool as a run meets it: virtual time passes, devices come, get notice and go.

Timeline -> Pool.take() / pass_to(time) -> there, leaving        usable = there, and not leaving
"""

from __future__ import annotations

from nereus.emu.plan import DeviceId
from nereus.sim.timeline import Change, PoolEvent, Timeline


class Pool:
    """Which devices are there at the moment."""

    def __init__(self, timeline: Timeline) -> None:
        self.there = set(timeline.start)
        self.leaving: dict[DeviceId, float] = {}
        """Devices on notice, and when they are gone."""
        self._events = iter(timeline.events)
        self.coming = next(self._events, None)
        """What happens next."""

    @property
    def usable(self) -> tuple[DeviceId, ...]:
        """Devices that a plan may use: there, and not leaving."""
        return tuple(sorted(self.there.difference(self.leaving)))

    @property
    def coming_s(self) -> float:
        """When something happens next; never, after the end of the trace."""
        return self.coming.time_s if self.coming else float("inf")

    def take(self) -> PoolEvent:
        """Let the next event happen."""
        event = self.coming
        assert event is not None
        self.coming = next(self._events, None)
        if event.change is Change.ARRIVED:
            self.there.update(event.devices)
        elif event.change is Change.GONE:
            self.there.difference_update(event.devices)
            self.leaving = {device: end for device, end in self.leaving.items() if device not in event.devices}
        else:
            self.leaving.update(dict.fromkeys(event.devices, event.gone_s))
        return event
