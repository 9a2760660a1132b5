"""The API put together: jobs to watch, who may ask, routes, errors as problems.

request -> Measured -> Gate (tokens) -> route -> projection of the job         Watch -> controllers' feeds -> projections
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from nereus import __version__
from nereus.api.access import OPEN, Access, Gate
from nereus.api.description import describe
from nereus.api.feed import POLL_S
from nereus.api.job_routes import about_jobs, view
from nereus.api.jobs import Jobs, Watch
from nereus.api.measured import Measured, templates
from nereus.api.problems import answer_errors_with_problems
from nereus.api.process_routes import process
from nereus.metrics.requests import RequestTallies


def create_app(jobs: Jobs, access: Access = OPEN, *, poll_s: float = POLL_S) -> FastAPI:
    """The API over these jobs, for those whom `access` lets in; it follows the jobs' feeds while it is served."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watch = Watch(jobs, poll_s)
        app.state.watch = watch
        await watch.look()
        following = asyncio.create_task(watch.follow())
        yield
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following

    app = FastAPI(
        title="Nereus",
        version=__version__,
        summary="RL post-training jobs, and how their parallelism is adapted while they run.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    answer_errors_with_problems(app)
    for routes in (about_jobs, view, process):
        app.include_router(routes)
    describe(app)
    app.state.access, app.state.requests = access, RequestTallies(templates(app.openapi()))
    app.add_middleware(Gate, access=access)
    app.add_middleware(Measured, tallies=app.state.requests)
    return app
