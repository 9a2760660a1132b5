"""`nereus replan`: ask a running job to look at its plan again, and show what it decides."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from nereus.api.client import Client
from nereus.cli.status import API, decision_line
from nereus.errors import UserError

WAIT_S = 10.0
"""Seconds to wait for the decision: the planner takes a few at most. Later it is found by `nereus status`."""

POLL_S = 0.2
"""Seconds between two looks."""


def ask_for_replan(client: Client, *, dry_run: bool, forced: bool, as_json: bool) -> None:
    """Ask, wait a little and print. Raises UserError when nothing answers, or the job cannot replan now."""
    answer = client.post(f"{API}/replans", {"dry_run": dry_run, "forced": forced}, secrets.token_hex(8))
    if not answer.is_ok:
        raise UserError(f"{client.url}: {answer.detail}")
    replan = _decided(client, answer.body)
    for line in [json.dumps(replan)] if as_json else lines(replan):
        print(line)  # noqa: T201


def _decided(client: Client, replan: dict[str, Any]) -> dict[str, Any]:
    """The request once it is decided, or as it is when the time is up."""
    end = time.monotonic() + WAIT_S
    while replan["state"] != "decided" and time.monotonic() < end:
        time.sleep(POLL_S)
        replan = client.wanted(f"{API}/replans/{replan['id']}")
    return replan


def lines(replan: dict[str, Any]) -> list[str]:
    """What came of a request, one line a candidate."""
    kind = ", ".join([*(["dry run"] if replan["dry_run"] else []), *(["forced"] if replan["forced"] else [])])
    name = f"replan {replan['id']}{f' ({kind})' if kind else ''}"
    if replan["state"] != "decided":
        return [f"{name}: nothing was decided within {WAIT_S:.0f} s; `nereus status` shows the last decision"]
    return [f"{name}: {len(replan['decisions'])} candidates", *(f"  {decision_line(d)}" for d in replan["decisions"])]
