"""Keeps the projection up to date: a task that asks the controller for news, in the API's own event loop.

controller.feed (in a thread, may block) -> fold (in the loop) -> every GET reads the projection (in the loop)
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from nereus.runtime.controller import ControllerPort
from nereus.runtime.projection import Projection

POLL_S = 0.25
"""Seconds between two looks at the feed: fresh enough for a person, and a quarter of a per mille of the head's time."""


class Feed:
    """The projection of one controller's feed, and whether it can be relied on."""

    def __init__(self, controller: ControllerPort, poll_s: float) -> None:
        self.projection = Projection()
        self._controller, self._poll_s = controller, poll_s
        self._turn = asyncio.Lock()
        self.lost: str | None = "the controller was not asked yet"
        """Why the latest question had no answer."""
        self.num_losses = 0
        """How often the controller stopped answering."""

    @property
    def is_connected(self) -> bool:
        """Whether the controller answered the latest question."""
        return self.lost is None

    def reasons(self) -> list[str]:
        """Why answers cannot be relied on, if so."""
        reasons = []
        if self.lost is not None:
            reasons.append(self.lost)
        if self.projection.plan is None:
            reasons.append("no plan is in force yet: the job's first units are being made")
        return reasons

    async def refresh(self) -> None:
        """Fold what is new. Raises ConnectionError when the controller does not answer."""
        async with self._turn:
            try:
                fresh = await asyncio.to_thread(self._controller.feed, self.projection.tallies.news)
            except ConnectionError as error:
                self.num_losses += self.lost is None
                self.lost = f"the controller does not answer: {error}"
                raise
            for news in fresh:
                self.projection.fold(news)
            self.lost = None

    async def follow(self) -> None:
        """Refresh for ever."""
        while True:
            try:
                with suppress(ConnectionError):
                    await self.refresh()
            except Exception as error:
                self.lost = f"the API cannot read the controller's feed ({error!r}); please report it"
                raise
            await asyncio.sleep(self._poll_s)
