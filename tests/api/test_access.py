"""Who may ask: tokens, roles, open probes, and the addresses that are served without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nereus.api.access import OPEN, Access
from nereus.api.app import create_app
from nereus.api.serve import Server
from nereus.errors import UserError
from nereus.spec.tokens import Role
from tests.api.news import STORY
from tests.api.served import JOB, Api, FakeController, FakeJobs, all_served, ask, wait_for
from tests.api.test_commands import assert_user_error, nereus

VIEWER, OPERATOR = "viewer-token-0123456789", "operator-token-0123456789"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"viewer:{VIEWER}\noperator:{OPERATOR}\n")
    return path


@pytest.fixture
def guarded(tokens: Path) -> Iterator[Api]:
    """The API of a job with a story, for those who have a token."""
    with all_served(FakeJobs({JOB: FakeController(STORY)}), Access.read(tokens)) as api:
        wait_for(lambda: api.get("/api/v1/plan", bearer(VIEWER)).status == 200)
        yield api


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def kind(reply: object) -> str:
    assert reply.headers.get_content_type() == "application/problem+json"  # type: ignore[attr-defined]
    return str(reply.body["type"])  # type: ignore[attr-defined]


def test_probes_are_open(guarded: Api) -> None:
    assert [guarded.get(path).status for path in ("/livez", "/readyz")] == [200, 200]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": VIEWER},
        {"Authorization": f"Basic {VIEWER}"},
        bearer(VIEWER + "x"),
        bearer(VIEWER[:-1]),
        bearer("\u00e9" * 20),
        bearer(""),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/plan", "/metrics", "/openapi.json", "/docs", "/nowhere"])
def test_request_without_a_good_token_is_refused_whatever_it_asks_for(
    guarded: Api, headers: dict[str, str], path: str
) -> None:
    reply = guarded.get(path, headers)
    assert reply.status == 401
    assert kind(reply) == "urn:nereus:problem:unauthenticated"
    assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    assert VIEWER not in reply.text


def test_viewer_looks_and_may_not_act(guarded: Api) -> None:
    for path in ("/api/v1/plan", "/api/v1/jobs", "/metrics", "/openapi.json", "/docs"):
        assert guarded.get(path, bearer(VIEWER)).status == 200, path
    for path, body in (("/api/v1/replans", {}), ("/api/v1/commands", {"verb": "pause"})):
        reply = guarded.post(path, body, bearer(VIEWER))
        assert reply.status == 403
        assert kind(reply) == "urn:nereus:problem:forbidden"
    assert guarded.controller.commands == []


def test_operator_looks_and_acts(guarded: Api) -> None:
    assert guarded.get("/api/v1/plan", {"authorization": f"bearer {OPERATOR}"}).status == 200
    assert guarded.post("/api/v1/replans", {"dry_run": True}, bearer(OPERATOR)).status == 202
    assert len(guarded.controller.commands) == 1


def test_role_is_that_of_the_token(tokens: Path) -> None:
    access = Access.read(tokens)
    assert access.role_of(f"Bearer {VIEWER}") is Role.VIEWER
    assert access.role_of(f"Bearer {OPERATOR}") is Role.OPERATOR
    assert access.role_of(None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "head.example"])
def test_address_that_others_reach_is_refused_without_tokens(host: str, tokens: Path) -> None:
    with pytest.raises(UserError, match="--token-file") as caught:
        Server(create_app(FakeJobs(), OPEN)).start(0, host)
    assert repr(host) in str(caught.value)
    Access.read(tokens).check_host(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_tokens(host: str) -> None:
    OPEN.check_host(host)


def test_server_with_tokens_may_listen_on_every_address(tokens: Path) -> None:
    server = Server(create_app(FakeJobs(), Access.read(tokens)))
    host, port = server.start(0, "0.0.0.0")
    try:
        assert host == "0.0.0.0"
        assert ask(f"http://127.0.0.1:{port}/livez").status == 200
        assert ask(f"http://127.0.0.1:{port}/metrics").status == 401
    finally:
        server.stop()


def test_command_sends_the_token_of_its_file(guarded: Api, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_user_error(nereus("status", "--url", guarded.url), "NEREUS_TOKEN_FILE")
    assert nereus("status", "--url", guarded.url, "--token-file", str(tokens)).returncode == 0
    monkeypatch.setenv("NEREUS_TOKEN_FILE", str(tokens))
    ended = nereus("replan", "--dry-run", "--url", guarded.url)
    assert ended.returncode == 0, ended.stderr
    assert len(guarded.controller.commands) == 1


def test_described_routes_need_a_token_but_for_the_probes(guarded: Api) -> None:
    paths = guarded.get("/openapi.json", bearer(VIEWER)).body["paths"]
    bare = {path for path, operations in paths.items() for o in operations.values() if "security" not in o}
    assert bare == {"/livez", "/readyz"}
    assert {m for o in paths.values() for m, operation in o.items() if "403" in operation["responses"]} == {"post"}
