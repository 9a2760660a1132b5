"""The checkpoints of a simulated job: written in the background every so often, and before a restart that is planned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Checkpoints:
    """The last one."""

    every_s: float
    """Seconds from one to the next."""
    step: int = 0
    """RL steps that are safe."""
    at_s: float = 0.0
    """When it was written."""

    def boundary(self, step: int, now_s: float) -> None:
        """A step is complete: save it if it is time."""
        if now_s - self.at_s >= self.every_s:
            self.save(step, now_s)

    def notice(self, step: int, now_s: float, gone_s: float, save_s: float) -> None:
        """Devices go: what the last boundary left is written, if there is time. No update has begun to change it."""
        if gone_s - now_s >= save_s:
            self.save(step, now_s)

    def save(self, step: int, now_s: float) -> None:
        """Save now."""
        self.step, self.at_s = step, now_s
