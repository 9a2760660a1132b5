"""The controller as others see it: what happened so far, and a door for an operator's wishes.

API, command line and framework hooks hold a ControllerPort; behind it is a head actor, or a list in a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nereus.control.effects import News
from nereus.control.events import Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanCommand:
    """An operator wants the plan to be looked at again, now."""

    id: str
    """Whoever asks names the request; it is journaled under this name."""
    dry_run: bool
    """Decide and record, but change nothing."""
    forced: bool
    """Carry out the best feasible plan even if it does not pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbCommand:
    """An operator wants the loop held or let go, something ended, or the plan before back."""

    id: str
    """Whoever asks names the request; it is journaled under this name."""
    verb: Verb


Command = ReplanCommand | VerbCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The controller has taken a command in; what it leads to comes as news."""

    id: str


class ControllerPort(Protocol):
    """One job's controller. Called from any thread, one call at a time or several; both verbs may block for some seconds.

    Both raise ConnectionError when the controller does not answer, as while it restarts: nothing is lost, ask again.
    """

    def feed(self, after: int) -> Sequence[News]:
        """What happened since the first `after` news, in order. The order is the same after a restart."""

    def submit(self, command: Command) -> Receipt:
        """Hand a command in; returns before anything is decided. A command that raised may have arrived all the same."""
