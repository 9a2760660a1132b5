"""`nereus pause`, `resume`, `abort` and `rollback`: ask a running job, and show what it answers."""

from __future__ import annotations

import json
import secrets
import time

from nereus.api.client import Client
from nereus.cli.replan import POLL_S, WAIT_S
from nereus.cli.status import API
from nereus.errors import UserError


def command_job(client: Client, verb: str, *, as_json: bool) -> None:
    """Ask, wait a little and print. Raises UserError when nothing answers, or it cannot be done."""
    answer = client.post(f"{API}/commands", {"verb": verb}, secrets.token_hex(8))
    if not answer.is_ok:
        raise UserError(f"{client.url}: {answer.detail}")
    command, end = answer.body, time.monotonic() + WAIT_S
    while command["state"] != "answered" and time.monotonic() < end:
        time.sleep(POLL_S)
        command = client.wanted(f"{API}/commands/{command['id']}")
    if as_json:
        print(json.dumps(command))  # noqa: T201
        return
    if command["done"] is False:
        raise UserError(f"{verb}: {command['reason']}")
    print(f"{verb}: {command['reason'] or f'no answer within {WAIT_S:.0f} s; `nereus status` shows the plan'}")  # noqa: T201
