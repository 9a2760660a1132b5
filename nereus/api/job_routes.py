"""The routes of the jobs, each about one of them. Every GET is answered from its projection, in this process.

GET  /api/v1/jobs, plan, steps/latest, checkpoints/latest, decisions, transitions, devices, replans/{id}, commands/{id}
POST /api/v1/replans, commands
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Header, Query, Request, Response

from nereus.api.jobs import Chosen, JobName, Watch, Watched
from nereus.api.problems import Kind, ProblemError
from nereus.api.schemas import (
    CheckpointOut,
    CommandIn,
    CommandOut,
    Decisions,
    Devices,
    JobList,
    PlanOut,
    ReplanIn,
    ReplanOut,
    StepOut,
    Transitions,
)
from nereus.runtime.projection import View

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

about_jobs = APIRouter(prefix=PREFIX)
view = APIRouter(prefix=PREFIX, responses={400: {}, 404: {}})


@about_jobs.get("/jobs")
async def jobs(request: Request, cursor: Cursor = None, limit: Limit = 50) -> JobList:
    """The jobs that this API serves, in the order in which they came."""
    watch: Watch = request.app.state.watch
    after = _number(cursor) or 0
    items = [_job_view(number, one) for number, one in enumerate(watch.watched, 1) if number > after]
    return JobList.model_validate(_page(items[: limit + 1], limit, "number"))


@view.get("/plan", responses={503: {}})
async def plan(job: Chosen) -> PlanOut:
    """The plan in force."""
    found = job.feed.projection.plan_view()
    if found is None:
        raise ProblemError(Kind.NOT_READY, "; ".join(job.feed.reasons()))
    return PlanOut(**found)


@view.get("/steps/latest")
async def latest_step(job: Chosen) -> StepOut:
    """The latest completed RL step."""
    found = job.feed.projection.step_view()
    if found is None:
        raise ProblemError(Kind.NOT_FOUND, "no step is complete yet")
    return StepOut(**found)


@view.get("/checkpoints/latest")
async def latest_checkpoint(job: Chosen) -> CheckpointOut:
    """The latest checkpoint, and the last return to one."""
    found = job.feed.projection.checkpoint_view()
    if found is None:
        raise ProblemError(Kind.NOT_FOUND, "no checkpoint was written yet")
    return CheckpointOut(**found)


@view.get("/decisions")
async def decisions(job: Chosen, cursor: Cursor = None, limit: Limit = 50) -> Decisions:
    """What was decided on every candidate plan, and why; newest first."""
    items = job.feed.projection.decisions(_number(cursor), limit + 1)
    return Decisions.model_validate(_page(items, limit, "number"))


@view.get("/transitions")
async def transitions(job: Chosen, cursor: Cursor = None, limit: Limit = 50) -> Transitions:
    """The transitions that were carried out, predicted and measured; newest first."""
    items = job.feed.projection.transitions(_number(cursor), limit + 1)
    return Transitions.model_validate(_page(items, limit, "number"))


@view.get("/devices")
async def devices(job: Chosen, cursor: Cursor = None, limit: Limit = 50) -> Devices:
    """The devices that are there, and what runs on them."""
    items = job.feed.projection.devices(_number(cursor), limit + 1)
    return Devices.model_validate(_page(items, limit, "device"))


@view.post("/replans", status_code=202, responses={202: {"headers": {"Location": LOCATION}}, 409: {}, 503: {}})
async def ask_for_replan(
    job: Chosen, response: Response, body: ReplanIn, key: Key = None, name: JobName = None
) -> ReplanOut:
    """Have the plan looked at again, now; the answer's Location tells later what was decided."""
    replan = await job.replans.ask(body, key)
    response.headers["Location"] = f"{PREFIX}/replans/{replan.id}{_about(job, name)}"
    return replan


@view.get("/replans/{id}")
async def replan(job: Chosen, id: str) -> ReplanOut:
    """A request for a replan, and what was decided."""
    return job.replans.view(id)


@view.post("/commands", status_code=202, responses={202: {"headers": {"Location": LOCATION}}, 409: {}, 503: {}})
async def command_job(job: Chosen, response: Response, body: CommandIn, key: Key = None, name: JobName = None) -> CommandOut:
    """Pause, resume, abort or roll back; the answer's Location tells later what came of it."""
    command = await job.commands.ask(body, key)
    response.headers["Location"] = f"{PREFIX}/commands/{command.id}{_about(job, name)}"
    return command


@view.get("/commands/{id}")
async def command(job: Chosen, id: str) -> CommandOut:
    """A command, and what it comes to."""
    return job.commands.view(id)


def _job_view(number: int, one: Watched) -> View:
    projection, reasons = one.feed.projection, one.feed.reasons()
    return {
        "number": number,
        "job": one.name,
        "ready": not reasons,
        "reasons": reasons,
        "step": projection.report.step if projection.report else 0,
        "epoch": projection.plan.epoch if projection.plan else None,
    }


def _about(job: Watched, name: str | None) -> str:
    """The part of a Location that names the job, where the request did: another job may come before it is looked at."""
    return "" if name is None else f"?{urlencode({'job': job.name})}"


def _number(cursor: str | None) -> int | None:
    return None if cursor is None else int(cursor)


def _page(items: Sequence[View], limit: int, key: str) -> dict[str, Any]:
    """One item more than the limit says that there is a further page; its cursor is the last item of this one."""
    shown = list(items[:limit])
    return {"items": shown, "next_cursor": str(shown[-1][key]) if len(items) > limit else None}
