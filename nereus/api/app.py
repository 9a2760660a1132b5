"""The routes. Every GET is answered from the projection, in this process; only a POST and the feed ask the controller.

GET  /api/v1/plan, steps/latest, checkpoints/latest, decisions, transitions, devices, replans/{id}, commands/{id}
POST /api/v1/replans, commands
GET  /livez, /readyz, /metrics, /openapi.json, /docs
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi.responses import HTMLResponse

from nereus import __version__
from nereus.api.description import describe_problems, reference_page
from nereus.api.exposition import CONTENT_TYPE
from nereus.api.feed import POLL_S, Feed
from nereus.api.metrics import exposition
from nereus.api.problems import Kind, ProblemError, answer_errors_with_problems
from nereus.api.requests import Requests, commands, replans
from nereus.api.schemas import (
    CheckpointOut,
    CommandIn,
    CommandOut,
    Decisions,
    Devices,
    Health,
    PlanOut,
    ReplanIn,
    ReplanOut,
    StepOut,
    Transitions,
)
from nereus.runtime.controller import ControllerPort, ReplanCommand, VerbCommand
from nereus.runtime.projection import Projection, View

MAX_LIMIT = 200
"""Items of one page: an answer stays below a few hundred kilobytes."""

PREFIX = "/api/v1"

Cursor = Annotated[str | None, Query(pattern=r"^\d{1,12}$", description="`next_cursor` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Items of a page.")]
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="Asking twice under one key asks once."),
]

LOCATION = {"description": "Where to look for what was decided.", "schema": {"type": "string"}}

view = APIRouter(prefix=PREFIX)
probes = APIRouter()


def create_app(controller: ControllerPort, *, poll_s: float = POLL_S) -> FastAPI:
    """The API over one job's controller; it follows the feed while it is served."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        feed = Feed(controller, poll_s)
        app.state.feed = feed
        app.state.replans, app.state.commands = replans(controller, feed), commands(controller, feed)
        following = asyncio.create_task(feed.follow())
        yield
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following

    app = FastAPI(
        title="Nereus",
        version=__version__,
        summary="One RL post-training job, and how its parallelism is adapted while it runs.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    answer_errors_with_problems(app)
    app.include_router(view)
    app.include_router(probes)
    describe_problems(app)
    return app


# --- the job ----------------------------------------------------------------------------------------------------------


@view.get("/plan", responses={503: {}})
async def plan(request: Request) -> PlanOut:
    """The plan in force."""
    found = _projection(request).plan_view()
    if found is None:
        raise ProblemError(Kind.NOT_READY, "; ".join(_feed(request).reasons()))
    return PlanOut(**found)


@view.get("/steps/latest", responses={404: {}})
async def latest_step(request: Request) -> StepOut:
    """The latest completed RL step."""
    found = _projection(request).step_view()
    if found is None:
        raise ProblemError(Kind.NOT_FOUND, "no step is complete yet")
    return StepOut(**found)


@view.get("/checkpoints/latest", responses={404: {}})
async def latest_checkpoint(request: Request) -> CheckpointOut:
    """The latest checkpoint, and the last return to one."""
    found = _projection(request).checkpoint_view()
    if found is None:
        raise ProblemError(Kind.NOT_FOUND, "no checkpoint was written yet")
    return CheckpointOut(**found)


@view.get("/decisions")
async def decisions(request: Request, cursor: Cursor = None, limit: Limit = 50) -> Decisions:
    """What was decided on every candidate plan, and why; newest first."""
    items = _projection(request).decisions(_number(cursor), limit + 1)
    return Decisions.model_validate(_page(items, limit, "number"))


@view.get("/transitions")
async def transitions(request: Request, cursor: Cursor = None, limit: Limit = 50) -> Transitions:
    """The transitions that were carried out, predicted and measured; newest first."""
    items = _projection(request).transitions(_number(cursor), limit + 1)
    return Transitions.model_validate(_page(items, limit, "number"))


@view.get("/devices")
async def devices(request: Request, cursor: Cursor = None, limit: Limit = 50) -> Devices:
    """The devices that are there, and what runs on them."""
    items = _projection(request).devices(_number(cursor), limit + 1)
    return Devices.model_validate(_page(items, limit, "device"))


@view.post("/replans", status_code=202, responses={202: {"headers": {"Location": LOCATION}}, 409: {}, 503: {}})
async def ask_for_replan(request: Request, response: Response, body: ReplanIn, key: Key = None) -> ReplanOut:
    """Have the plan looked at again, now; the answer's Location tells later what was decided."""
    asked: Requests[ReplanIn, ReplanCommand, ReplanOut] = request.app.state.replans
    replan = await asked.ask(body, key)
    response.headers["Location"] = f"{PREFIX}/replans/{replan.id}"
    return replan


@view.get("/replans/{id}", responses={404: {}})
async def replan(request: Request, id: str) -> ReplanOut:
    """A request for a replan, and what was decided."""
    asked: Requests[ReplanIn, ReplanCommand, ReplanOut] = request.app.state.replans
    return asked.view(id)


@view.post("/commands", status_code=202, responses={202: {"headers": {"Location": LOCATION}}, 409: {}, 503: {}})
async def command_job(request: Request, response: Response, body: CommandIn, key: Key = None) -> CommandOut:
    """Pause, resume, abort or roll back; the answer's Location tells later what came of it."""
    asked: Requests[CommandIn, VerbCommand, CommandOut] = request.app.state.commands
    command = await asked.ask(body, key)
    response.headers["Location"] = f"{PREFIX}/commands/{command.id}"
    return command


@view.get("/commands/{id}", responses={404: {}})
async def command(request: Request, id: str) -> CommandOut:
    """A command, and what it comes to."""
    asked: Requests[CommandIn, VerbCommand, CommandOut] = request.app.state.commands
    return asked.view(id)


# --- the process ------------------------------------------------------------------------------------------------------


@probes.get("/livez")
async def livez() -> Health:
    """The process answers."""
    return Health(status="ok")


@probes.get("/readyz", responses={503: {}})
async def readyz(request: Request) -> Health:
    """A plan is in force and the controller answers; 503 with the reasons otherwise."""
    reasons = _feed(request).reasons()
    if reasons:
        raise ProblemError(Kind.NOT_READY, "; ".join(reasons), reasons=reasons)
    return Health(status="ready")


@probes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Everything as Prometheus metrics."""
    feed = _feed(request)
    return Response(exposition(feed.projection, is_connected=feed.is_connected), media_type=CONTENT_TYPE)


@probes.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    """This API on one page, without scripts."""
    return HTMLResponse(reference_page(request.app.openapi()))


def _feed(request: Request) -> Feed:
    feed: Feed = request.app.state.feed
    return feed


def _projection(request: Request) -> Projection:
    return _feed(request).projection


def _number(cursor: str | None) -> int | None:
    return None if cursor is None else int(cursor)


def _page(items: Sequence[View], limit: int, key: str) -> dict[str, Any]:
    """One item more than the limit says that there is a further page; its cursor is the last item of this one."""
    shown = list(items[:limit])
    return {"items": shown, "next_cursor": str(shown[-1][key]) if len(items) > limit else None}
