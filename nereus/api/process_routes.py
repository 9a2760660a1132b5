"""The routes of the process itself: whether it lives, whether it can be relied on, its metrics, its description.

GET /livez, /readyz, /metrics, /openapi.json, /docs
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from nereus.api.description import reference_page
from nereus.api.jobs import JobName, Watch
from nereus.api.problems import Kind, ProblemError
from nereus.api.schemas import Health
from nereus.metrics.exposition import CONTENT_TYPE, Process, Source
from nereus.metrics.table import exposition

process = APIRouter()


@process.get("/livez")
async def livez() -> Health:
    """The process answers."""
    return Health(status="ok")


@process.get("/readyz", responses={404: {}, 503: {}})
async def readyz(request: Request, job: JobName = None) -> Health:
    """The controller answers, and with `?job=` a plan of that job is in force; 503 with the reasons otherwise."""
    watch = _watch(request)
    reasons = watch.reasons() if job is None else watch.job(job).feed.reasons()
    if reasons:
        raise ProblemError(Kind.NOT_READY, "; ".join(reasons), reasons=reasons)
    return Health(status="ready")


@process.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Everything as Prometheus metrics."""
    watch = _watch(request)
    sources = [Source(one.name, one.feed.projection, one.feed.is_connected, one.feed.num_losses) for one in watch.watched]
    about = Process(not watch.reasons(), len(sources), request.app.state.requests, watch.standing)
    return Response(exposition(sources, about), media_type=CONTENT_TYPE)


@process.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    """This API on one page, without scripts."""
    return HTMLResponse(reference_page(request.app.openapi()))


def _watch(request: Request) -> Watch:
    watch: Watch = request.app.state.watch
    return watch
