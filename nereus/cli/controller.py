"""The controller of several jobs: started, shown, asked to end a job, stopped; how `nereus run` hands a job over to it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nereus.cli.display import Display
from nereus.control.checkpoint import Checkpoint
from nereus.errors import NereusError, UserError
from nereus.runtime.standing import DEVICE_COUNTS
from nereus.spec.job import Job


def cluster_address(address: str | None) -> str:
    """The cluster that a command is about. Raises UserError if none is named."""
    if address is None:
        raise UserError("--address: name the Ray cluster, such as 127.0.0.1:6379, or set RAY_ADDRESS, as a Ray job has it")
    return address


def start_controller(
    address: str | None,
    folder: Path,
    host: str,
    port: int,
    token_file: Path | None,
    least: int,
    most: int | None,
) -> None:
    """Start it unless it lives, and say where its API is."""
    where = cluster_address(address)
    from actors.connection import attached
    from actors.office import opened, spec_of

    spec = spec_of(folder, host, port, token_file, least, most)
    with attached(where):
        _, url, is_new = opened(spec)
    Console().print(f"{'started' if is_new else 'it runs already'}; API at {url}", highlight=False, soft_wrap=True)


def show_controller(address: str | None, *, as_json: bool) -> None:
    """Its jobs and devices. Raises UserError where none lives."""
    with_office = _status(cluster_address(address))
    if as_json:
        print(json.dumps(with_office))  # noqa: T201
        return
    console = Console()
    for kind, found in with_office["devices"].items():
        counts = ", ".join(f"{found[count]} {count.replace('_', ' ')}" for count in DEVICE_COUNTS)
        console.print(f"{kind}: {counts}", highlight=False)
    console.print(_jobs_table(with_office["jobs"]) if with_office["jobs"] else "no job yet", highlight=False)
    if with_office["error"]:
        console.print(with_office["error"], highlight=False, markup=False, soft_wrap=True)


def cancel_job(address: str | None, job: str) -> None:
    """End one job of it, and no other. Raises UserError for a job that it does not have."""
    where = cluster_address(address)
    from actors.connection import attached

    with attached(where):
        office = _office(where)
        is_told = office.ask("cancel", job, "cancelled by an operator")
        states = {view["job"]: view["state"] for view in office.ask("status")["jobs"]}
    if job not in states:
        known = ", ".join(states) or "none"
        raise UserError(f"JOB: {job!r} is no job of the controller, whose jobs are: {known}; give one of them")
    after = "it ends; `nereus controller status` shows when it has" if is_told else f"it was {states[job]} already"
    Console().print(f"{job}: {after}", highlight=False)


def stop_controller(address: str | None) -> None:
    """End its jobs, and itself; saying so where none lives is enough."""
    where = cluster_address(address)
    from actors.connection import attached
    from actors.office import living

    with attached(where):
        office = living()
        unrecorded = office.stop() if office is not None else None
    Console().print("stopped, and its jobs with it" if office is not None else "no controller lives there")
    if unrecorded is not None:
        raise NereusError(f"{unrecorded}: when it is started again there, it takes waiting jobs up again")


def take_leave(address: str | None, node: str | None, notice_s: float) -> None:
    """Announce that a node leaves, wait until it is free, and say how it went."""
    where = cluster_address(address)
    if where.startswith("ray://"):
        raise UserError(f"--address: {where!r} is a client's; give HOST:PORT of the head, on a node of the cluster")
    from actors.connection import attached
    from actors.leaving import leave

    with attached(where):
        left, seconds = leave(node, notice_s)
    told = "its devices are free" if not left else f"{left} of its devices are still in use, and the time is over"
    Console().print(f"{told}, after {seconds:.1f} s", highlight=False)


def hand_over(job: Job, checkpoint: Checkpoint | None, asked: Any, display: Display) -> bool:
    """Give a job to the controller of the connected cluster and watch it; False where none lives.

    `asked` are the options of `nereus run`. Ctrl-C ends the job. Raises what ended it otherwise.
    """
    from actors.office import HandedOver, living
    from actors.submission import Submission

    office = living()
    if office is None:
        return False
    if asked.run_dir is not None:
        raise UserError("--run-dir: a controller lives on this cluster, and keeps the runs in its own folder; leave it out")
    handed = HandedOver.of(office, Submission(job, datetime.now(UTC).strftime("%Y%m%d-%H%M%S"), checkpoint))
    if asked.detach:
        _say_handed(handed.view(), as_json=asked.as_json)
        return True
    try:
        with display:
            display.say(f"handed over to the controller as {handed.name}; Ctrl-C ends it")
            for event in handed.watch():
                if isinstance(event, str):
                    display.say(f"it waits: {event}")
                else:
                    display.show(event)
            summary = handed.summary()
            display.finish(summary)
    except KeyboardInterrupt:
        handed.cancel("interrupted by whoever watched it")
        raise
    if asked.as_json:
        print(json.dumps(summary.as_dict()))  # noqa: T201
    return True


def _say_handed(view: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(view))  # noqa: T201
    else:
        Console().print(f"handed over to the controller as {view['job']}; `nereus controller status` shows it")


def _status(address: str) -> dict[str, Any]:
    from actors.connection import attached

    with attached(address):
        found: dict[str, Any] = _office(address).ask("status")
        return found


def _office(address: str) -> Any:
    """The controller of the connected cluster. Raises UserError where none lives."""
    from actors.office import living

    office = living()
    if office is None:
        raise UserError(f"no controller lives on the cluster at {address!r}; `nereus controller start` starts one")
    return office


def _jobs_table(jobs: list[dict[str, Any]]) -> Table:
    table = Table(title="jobs", title_justify="left")
    for heading in ("job", "state", "step", "epoch", "devices", "wanted", "reason"):
        table.add_column(heading, justify="right" if heading in ("step", "epoch", "devices", "wanted") else "left")
    for job in jobs:
        numbers = (job["step"], job["epoch"], len(job["devices"]), job["wanted"])
        shown = ("-" if number is None else str(number) for number in numbers)
        table.add_row(job["job"], job["state"], *shown, job["reason"])
    return table
