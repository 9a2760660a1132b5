"""`nereus status`: plan, devices, last step and last decision of a running job, as its API tells them."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from nereus.api.client import Client
from nereus.errors import UserError

API = "/api/v1"
MIB = 2**20


def show_status(client: Client, *, as_json: bool) -> None:
    """Ask once and print. Raises UserError when nothing answers, or several jobs do and none is named."""
    status = fetch_status(client)
    if as_json:
        print(json.dumps(status))  # noqa: T201
        return
    console = Console()
    for line in (plan_table(status), device_table(status), *lines(status)):
        console.print(line, highlight=False, markup=False, soft_wrap=isinstance(line, str))


def fetch_status(client: Client) -> dict[str, Any]:
    """What --json prints; what there is not yet is null."""
    job = the_job(client)
    plan, step, checkpoint = (client.get(f"{API}/{name}") for name in ("plan", "steps/latest", "checkpoints/latest"))
    decisions, transitions = (client.wanted(f"{API}/{name}?limit=1")["items"] for name in ("decisions", "transitions"))
    return {
        "job": job["job"],
        "ready": job["ready"],
        "reasons": job["reasons"],
        "plan": plan.body if plan.is_ok else None,
        "devices": client.all(f"{API}/devices"),
        "last_step": step.body if step.is_ok else None,
        "last_decision": decisions[0] if decisions else None,
        "last_transition": transitions[0] if transitions else None,
        "last_checkpoint": checkpoint.body if checkpoint.is_ok else None,
    }


def the_job(client: Client) -> dict[str, Any]:
    """The job that is asked about. Raises UserError where there is none, or several and none is named."""
    jobs = client.all(f"{API}/jobs")
    wanted = [one for one in jobs if client.job in (None, one["job"])]
    if len(wanted) != 1:
        names = ", ".join(one["job"] for one in jobs) or "none runs there"
        found = "no such job is" if client.job else f"{len(jobs)} jobs are"
        raise UserError(f"--job: {client.job!r}: {found} at {client.url}; the jobs: {names}")
    job: dict[str, Any] = wanted[0]
    return job


def plan_table(status: dict[str, Any]) -> Table | str:
    """The layout of each model-stage."""
    plan = status["plan"]
    if plan is None:
        return "no plan is in force yet"
    held = ", paused" if plan["paused"] else ""
    table = Table(title=f"plan, epoch {plan['epoch']}, since step {plan['since_step']}{held}", title_justify="left")
    for heading in ("model-stage", "tp", "pp", "dp", "micro-batch", "devices"):
        table.add_column(heading, justify="left" if heading in ("model-stage", "devices") else "right")
    for name, stage in plan["stages"].items():
        degrees = (str(stage[key]) for key in ("tp", "pp", "dp", "micro_batch"))
        table.add_row(name, *degrees, " ".join(str(device) for device in stage["devices"]))
    return table


def device_table(status: dict[str, Any]) -> Table | str:
    """Who is there, and who leaves when."""
    if not status["devices"]:
        return "no device is ready yet"
    table = Table(title="devices", title_justify="left")
    for heading in ("device", "endpoint", "state", "model-stages"):
        table.add_column(heading, justify="right" if heading == "device" else "left")
    for device in status["devices"]:
        leaves = device["leaves_after_step"]
        state = device["state"] if leaves is None else f"leaves after step {leaves}"
        table.add_row(str(device["device"]), device["endpoint"], state, ", ".join(device["model_stages"]) or "none")
    return table


def lines(status: dict[str, Any]) -> list[str]:
    """Last step, last decision, last transition; and what is wrong, if anything is."""
    step, decision, change = (status[key] for key in ("last_step", "last_decision", "last_transition"))
    found = []
    if step is not None:
        peak = max(step["peak_bytes"].values(), default=0) / MIB
        found.append(
            f"last step: {step['step']}, reward {_shown(step['reward'], 3)}, "
            f"length {_shown(step['response_tokens_mean'], 1)}, {_shown(step['step_seconds'], 2)} s, peak {peak:.1f} MiB"
        )
    if decision is not None:
        found.append(f"last decision: {decision_line(decision)}")
    if change is not None:
        found.append(
            f"last transition: to epoch {change['epoch']} after step {change['step']}, "
            f"{_shown(change['seconds'], 3)} s, predicted {_shown(change['predicted_seconds'], 3)} s [{change['trigger']}]"
        )
    saved = status["last_checkpoint"]
    if saved is not None:
        back = "" if saved["restored_after_step"] is None else f"; gone back to after step {saved['restored_after_step']}"
        found.append(
            f"last checkpoint: after step {saved['step']}, {saved['size_bytes'] / MIB:.1f} MiB in "
            f"{_shown(saved['seconds'], 2)} s to {saved['folder']} [{saved['reason']}]{back}"
        )
    return [*found, *(f"not ready: {reason}" for reason in status["reasons"])]


def decision_line(decision: dict[str, Any]) -> str:
    """What was decided on one candidate, and why."""
    target = "; ".join(f"{name} -> {plan}" for name, plan in decision["target"].items())
    why = "; ".join(decision["triggers"])
    return f"{decision['code']} after step {decision['step']} [{why}]: {target}: {decision['reason']}"


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
