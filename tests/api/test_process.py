"""Probes, ports, problems and documents of the API's process."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nereus.api import openapi
from nereus.api.access import Access
from nereus.api.app import create_app
from nereus.api.problems import Kind
from nereus.api.serve import Server, listen
from tests.api.news import STORY, started
from tests.api.served import JOB, Api, FakeController, FakeJobs, all_served, ask, served, wait_for

ROOT = Path(__file__).parents[2]


def test_process_is_alive_whatever_the_job_does(young: Api) -> None:
    assert young.get("/livez").body == {"status": "ok"}
    young.controller.is_gone = True
    assert young.get("/livez").status == 200


def test_job_is_ready_once_a_plan_is_in_force(young: Api) -> None:
    early = young.get(f"/readyz?job={JOB}")
    assert early.status == 503
    assert early.headers.get_content_type() == "application/problem+json"
    (reason,) = early.body["reasons"]
    assert "no plan is in force" in reason
    young.tell(started())
    assert (young.get(f"/readyz?job={JOB}").status, young.get(f"/readyz?job={JOB}").body) == (200, {"status": "ready"})


def test_process_is_ready_while_its_jobs_begin_or_there_are_none(young: Api) -> None:
    """A Service that leads to it must not drop it because a job starts."""
    assert young.get("/readyz").status == 200
    with all_served(FakeJobs()) as idle:
        assert idle.get("/readyz").status == 200
        idle.jobs.is_gone = True
        wait_for(lambda: idle.get("/readyz").status == 503)
        assert idle.get("/readyz").body["reasons"] == ["the controller does not answer: it restarts"]


def test_job_is_not_ready_while_its_controller_does_not_answer(api: Api) -> None:
    api.controller.is_gone = True
    wait_for(lambda: api.get("/readyz").status == 503)
    assert api.get("/readyz").body["reasons"] == [f"{JOB}: the controller does not answer: it restarts"]
    api.controller.is_gone = False
    wait_for(lambda: api.get("/readyz").status == 200)


def test_controller_that_was_never_there_is_one_of_two_reasons() -> None:
    controller = FakeController(STORY)
    controller.is_gone = True
    with served(controller) as api:
        assert len(api.get(f"/readyz?job={JOB}").body["reasons"]) == 2


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/nowhere", 404, "not-found"),
        ("/api/v1/nowhere", 404, "not-found"),
        ("/api/v1/replans", 405, "method-not-allowed"),
        ("/api/v1/decisions?limit=0", 422, "invalid-request"),
        ("/api/v1/decisions?limit=201", 422, "invalid-request"),
        ("/api/v1/decisions?limit=many", 422, "invalid-request"),
        ("/api/v1/transitions?cursor=x", 422, "invalid-request"),
        ("/api/v1/devices?cursor=-1", 422, "invalid-request"),
    ],
)
def test_error_is_a_problem_of_a_stable_type(api: Api, path: str, status: int, kind: str) -> None:
    reply = api.get(path)
    assert reply.status == reply.body["status"] == status
    assert reply.headers.get_content_type() == "application/problem+json"
    assert reply.body["type"] == f"urn:nereus:problem:{kind}"
    assert reply.body["detail"]
    if status == 405:
        assert reply.headers["Allow"] == "POST"


def test_api_listens_on_loopback_at_the_port_that_was_asked_for_or_the_next_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = Server(create_app(FakeJobs()))
        host, found = server.start(port)
        try:
            assert host == "127.0.0.1"
            assert port < found < port + 20
            assert ask(f"http://{host}:{found}/livez").status == 200
        finally:
            server.stop()


def test_port_that_others_were_told_is_an_error_where_it_is_taken(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("viewer:look-only-0123456789\n")
    with listen(0, "0.0.0.0") as taken:
        port = taken.getsockname()[1]
        server = Server(create_app(FakeJobs(), Access.read(tmp_path / "tokens")))
        with pytest.raises(OSError, match=rf"0\.0\.0\.0: port {port} not free .*; give another --port"):
            server.start(port, "0.0.0.0")


def test_any_port_may_be_asked_for_on_a_host_that_others_reach() -> None:
    with listen(0, "0.0.0.0") as found:
        assert found.getsockname()[1] > 0


def test_stopped_server_leaves_its_port() -> None:
    server = Server(create_app(FakeJobs()))
    _, port = server.start(0)
    server.stop()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_committed_description_is_that_of_the_code(api: Api) -> None:
    wanted = openapi.document()
    committed = (ROOT / "openapi.json").read_text(encoding="utf-8")
    assert committed == wanted, "run: python -m nereus.api.openapi > openapi.json"


def test_served_description_has_every_route_and_problems_for_errors(api: Api) -> None:
    served = api.get("/openapi.json").body
    assert set(served["paths"]) == {
        *(
            f"/api/v1/{name}"
            for name in (
                "jobs",
                "plan",
                "steps/latest",
                "checkpoints/latest",
                "decisions",
                "transitions",
                "devices",
                "replans",
                "commands",
            )
        ),
        "/api/v1/replans/{id}",
        "/api/v1/commands/{id}",
        *("/livez", "/readyz", "/metrics", "/docs"),
    }
    errors = [
        response["content"]
        for operations in served["paths"].values()
        for operation in operations.values()
        for status, response in operation["responses"].items()
        if int(status) >= 400
    ]
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    assert len(errors) > 5
    assert all(content == problem for content in errors)


def test_reference_page_names_every_route_and_loads_nothing(api: Api) -> None:
    page = api.get("/docs")
    assert page.headers.get_content_type() == "text/html"
    for path in api.get("/openapi.json").body["paths"]:
        assert path in page.text
    assert "<script" not in page.text
    assert "http" not in page.text.replace("https://datatracker", "")


def test_api_document_has_every_route_and_every_kind_of_problem(api: Api) -> None:
    document = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    paths = [*api.get("/openapi.json").body["paths"], "/openapi.json"]
    assert [path for path in paths if f"{path}`" not in document] == []
    assert [kind.type for kind in Kind if f"`{kind.type}`" not in document] == []
