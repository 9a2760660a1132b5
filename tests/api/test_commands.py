"""`nereus status` and `nereus replan` as processes of their own, against an API that is really served."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from nereus.control.effects import Answered, News
from nereus.control.events import Verb
from nereus.policy.admission import Code
from nereus.runtime.controller import ReplanCommand, VerbCommand
from tests.api.news import decision
from tests.api.served import JOB, Api

ROOT = Path(__file__).parents[2]

MAIN = """
import sys
from nereus.cli.app import main
try:
    main()
finally:
    assert not {"ray", "torch", "fastapi", "uvicorn"} & set(sys.modules), "a command that only asks loads none of these"
"""


def nereus(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `nereus ARGUMENTS`; it must load neither Ray nor torch nor a server."""
    command = [sys.executable, "-W", "error", "-c", MAIN, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_status_as_json_is_one_object_with_all_that_is_known(api: Api) -> None:
    ended = nereus("status", "--url", api.url, "--json")
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    status = json.loads(line)
    assert (status["job"], status["ready"], status["reasons"]) == (JOB, True, [])
    assert status["plan"] == api.get("/api/v1/plan").body
    assert status["devices"] == api.get("/api/v1/devices").body["items"]
    assert status["last_step"]["step"] == 2
    assert status["last_decision"]["code"] == "admitted"
    assert status["last_transition"]["epoch"] == 1


def test_status_shows_plan_devices_step_and_decision(api: Api) -> None:
    shown = nereus("status", "--url", api.url + "/").stdout
    for part in ("plan, epoch 1", "actor_training", "leaves after step 4", "last step: 2", "reward 0.750"):
        assert part in shown
    assert "last decision: admitted after step 1 [the pool went from 2 to 3 devices]" in shown
    assert "last transition: to epoch 1 after step 1, 1.500 s, predicted 1.000 s" in shown


def test_status_of_a_job_that_starts_says_what_it_waits_for(young: Api) -> None:
    ended, told = nereus("status", "--url", young.url), nereus("status", "--url", young.url, "--json")
    assert ended.returncode == told.returncode == 0
    assert "no plan is in force yet" in ended.stdout
    assert "not ready: no plan" in ended.stdout
    status = json.loads(told.stdout)
    assert (status["ready"], status["plan"], status["devices"], status["last_step"]) == (False, None, [], None)


def decide(command: ReplanCommand) -> Iterable[News]:
    return [decision(code, cycle=7, command=command.id) for code in (Code.REJECTED_NO_GAIN, Code.ADMITTED)]


def test_replan_hands_the_options_on_and_shows_what_was_decided(api: Api) -> None:
    api.controller.on_submit = decide
    ended = nereus("replan", "--dry-run", "--force", "--url", api.url)
    assert ended.returncode == 0, ended.stderr
    ((name, dry_run, forced),) = [(c.id, c.dry_run, c.forced) for c in api.controller.commands]
    assert (dry_run, forced) == (True, True)
    first, *candidates = ended.stdout.splitlines()
    assert first == f"replan {name} (dry run, forced): 2 candidates"
    assert [line.split()[0] for line in candidates] == ["rejected_no_gain", "admitted"]


def test_replan_as_json_is_the_request_with_its_decisions(api: Api) -> None:
    api.controller.on_submit = decide
    replan = json.loads(nereus("replan", "--url", api.url, "--json").stdout)
    assert replan == api.get(f"/api/v1/replans/{replan['id']}").body
    assert (replan["dry_run"], replan["forced"], replan["state"]) == (False, False, "decided")


def test_replan_of_a_job_that_starts_is_refused_with_the_reason(young: Api) -> None:
    assert_user_error(nereus("replan", "--url", young.url), "no plan is in force yet")


def answered(command: VerbCommand) -> Iterable[News]:
    done = command.verb is not Verb.ROLLBACK
    paused = command.verb is Verb.PAUSE
    return [Answered(step=3, command=command.id, verb=command.verb, done=done, reason="so it is", paused=paused)]


@pytest.mark.parametrize("verb", ["pause", "resume", "abort"])
def test_verb_is_handed_on_and_its_answer_is_shown(api: Api, verb: str) -> None:
    api.controller.on_submit = answered
    ended = nereus(verb, "--url", api.url)
    assert (ended.returncode, ended.stdout) == (0, f"{verb}: so it is\n"), ended.stderr
    assert [command.verb for command in api.controller.commands] == [Verb(verb)]
    assert api.get("/api/v1/plan").body["paused"] is (verb == "pause")


def test_verb_that_cannot_be_done_is_one_clear_message_and_under_json_an_answer(api: Api) -> None:
    api.controller.on_submit = answered
    assert_user_error(nereus("rollback", "--url", api.url), "rollback: so it is")
    command = json.loads(nereus("rollback", "--url", api.url, "--json").stdout)
    assert command == api.get(f"/api/v1/commands/{command['id']}").body
    assert (command["verb"], command["state"], command["done"]) == ("rollback", "answered", False)


def test_verb_that_is_not_known_is_refused_by_field(api: Api) -> None:
    reply = api.post("/api/v1/commands", {"verb": "explode"})
    assert reply.status == 422
    assert [error["field"] for error in reply.body["errors"]] == ["body.verb"]
    assert api.controller.commands == []


@contextmanager
def answering(text: bytes) -> Iterator[str]:
    """Something that answers every connection with a text, and is not Nereus."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(text)

        thread = Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def assert_user_error(ended: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize("command", ["status", "replan", "pause"])
def test_nothing_at_the_url_is_one_clear_message(command: str) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        assert_user_error(nereus(command, "--url", url), "nothing answers at", url, "refused", "nereus run")


@pytest.mark.parametrize("text", [b"HTTP/1.0 200 OK\r\n\r\n<html>", b"HTTP/1.0 404 Not Found\r\n\r\n", b"220 mail\r\n"])
def test_another_server_at_the_url_is_told_as_such(text: bytes) -> None:
    with answering(text) as url:
        assert_user_error(nereus("status", "--url", url), url, "is not the API of Nereus")


@pytest.mark.parametrize("url", ["127.0.0.1:8420", "localhost", "ftp://x"])
def test_url_that_is_none_is_refused(url: str) -> None:
    assert_user_error(nereus("status", "--url", url), "--url", url, "http://HOST:PORT")
