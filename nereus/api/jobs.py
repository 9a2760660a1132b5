"""The jobs that one API serves: each followed by a task of its own, so that one that does not answer holds up no other.

Jobs.names -> a Watched per job: feed (projection), replans, commands          ?job=NAME -> Watched
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Query, Request

from nereus.api.feed import Feed
from nereus.api.problems import Kind, ProblemError
from nereus.api.requests import Requests, commands, replans
from nereus.api.schemas import CommandIn, CommandOut, ReplanIn, ReplanOut
from nereus.runtime.controller import ControllerPort, ReplanCommand, VerbCommand
from nereus.runtime.standing import Standing


class Jobs(Protocol):
    """The jobs of a controller. Called from any thread; may block for some seconds. A name is of one job for ever.

    Both raise ConnectionError when the controller does not answer: what is known stays known, and it is asked again.
    """

    def names(self) -> tuple[str, ...]:
        """The jobs that are there, in the order in which they came."""

    def port(self, name: str) -> ControllerPort:
        """The controller of one job. Raises KeyError when there is none of this name."""

    @property
    def standing(self) -> Standing | None:
        """How the controller of several jobs stood when it told the names; None for a single run."""


@dataclass(frozen=True, slots=True)
class OneJob:
    """The jobs of a run: itself."""

    name: str
    controller: ControllerPort

    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def port(self, name: str) -> ControllerPort:
        if name != self.name:
            raise KeyError(name)
        return self.controller

    @property
    def standing(self) -> None:
        """There is no controller of several jobs."""
        return None


@dataclass(frozen=True, slots=True)
class Watched:
    """One job, as this process knows it."""

    name: str
    feed: Feed
    replans: Requests[ReplanIn, ReplanCommand, ReplanOut]
    commands: Requests[CommandIn, VerbCommand, CommandOut]
    following: asyncio.Task[None]


class Watch:
    """All jobs of one API. Lives in the API's event loop."""

    def __init__(self, jobs: Jobs, poll_s: float) -> None:
        self._jobs, self._poll_s = jobs, poll_s
        self._watched: dict[str, Watched] = {}
        self._lost: str | None = None
        """Why the latest question for the jobs had no answer."""

    @property
    def watched(self) -> tuple[Watched, ...]:
        return tuple(self._watched.values())

    @property
    def is_connected(self) -> bool:
        """Whether the latest question for the jobs was answered."""
        return self._lost is None

    @property
    def standing(self) -> Standing | None:
        """How the controller of several jobs stands, if there is one."""
        return self._jobs.standing

    def reasons(self) -> list[str]:
        """Why answers cannot be relied on, if so; a job that has just begun is no reason."""
        lost = [] if self._lost is None else [self._lost]
        return lost + [f"{one.name}: {one.feed.lost}" for one in self.watched if one.feed.lost is not None]

    def job(self, name: str | None) -> Watched:
        """A job by its name, or the only one. Raises ProblemError."""
        names = list(self._watched)
        if name is not None and name in self._watched:
            return self._watched[name]
        if name is not None or not names:
            wanted = "there is no job" if name is None else f"there is no job {name!r}"
            raise ProblemError(Kind.NOT_FOUND, f"{wanted}; {_listed(names)}", jobs=names)
        if len(names) > 1:
            raise ProblemError(Kind.JOB_NEEDED, f"say which with ?job=NAME (--job NAME); {_listed(names)}", jobs=names)
        return self._watched[names[0]]

    async def follow(self) -> None:
        """Look for jobs that come and go, for ever; ends what it started when it is cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(self._poll_s)
        finally:
            tasks = [one.following for one in self.watched]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> None:
        """Ask once which jobs there are."""
        try:
            names = await asyncio.to_thread(self._jobs.names)
        except ConnectionError as error:
            self._lost = f"the controller does not answer: {error}"
            return
        except Exception as error:
            self._lost = f"the API cannot read which jobs there are ({error!r}); please report it"
            raise
        self._lost = None
        for name in self._watched.keys() - set(names):
            self._watched.pop(name).following.cancel()
        for name in names:
            if name not in self._watched:
                with suppress(KeyError, ConnectionError):
                    self._watched[name] = self._watch(name, await asyncio.to_thread(self._jobs.port, name))

    def _watch(self, name: str, controller: ControllerPort) -> Watched:
        feed = Feed(controller, self._poll_s)
        following = asyncio.create_task(feed.follow(), name=f"follow {name}")
        return Watched(name, feed, replans(controller, feed), commands(controller, feed), following)


JobName = Annotated[
    str | None,
    Query(alias="job", min_length=1, max_length=200, description="Which job; may be left out while there is one."),
]


async def chosen(request: Request, job: JobName = None) -> Watched:
    """The job that a request is about."""
    watch: Watch = request.app.state.watch
    return watch.job(job)


Chosen = Annotated[Watched, Depends(chosen)]


def _listed(names: list[str]) -> str:
    return f"the jobs are {', '.join(names)}" if names else "none runs here"
