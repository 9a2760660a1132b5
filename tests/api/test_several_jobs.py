"""One API over several jobs: which one a request is about, and that none holds up another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nereus.control.effects import News
from tests.api.news import STORY, decision, pool, started, step
from tests.api.served import Api, FakeController, FakeJobs, all_served, wait_for
from tests.api.test_commands import assert_user_error, nereus

YOUNG: tuple[News, ...] = (pool(0, {7: "d7.0"}),)


@pytest.fixture
def two() -> Iterator[Api]:
    """A job with a story behind it, and one that begins."""
    with all_served(FakeJobs({"old": FakeController(STORY), "new job": FakeController(YOUNG)})) as api:
        api.wait_until_told()
        yield api


def test_jobs_are_listed_with_their_state(two: Api) -> None:
    found = two.get("/api/v1/jobs").body
    assert found["next_cursor"] is None
    first, second = found["items"]
    assert first == {"number": 1, "job": "old", "ready": True, "reasons": [], "step": 2, "epoch": 1}
    assert (second["job"], second["ready"], second["step"], second["epoch"]) == ("new job", False, 0, None)
    assert "no plan is in force" in second["reasons"][0]
    page = two.get("/api/v1/jobs?limit=1").body
    assert [job["job"] for job in page["items"]] == ["old"]
    assert [job["job"] for job in two.get(f"/api/v1/jobs?cursor={page['next_cursor']}").body["items"]] == ["new job"]


def test_request_is_about_the_job_that_it_names(two: Api) -> None:
    assert [d["device"] for d in two.get("/api/v1/devices?job=new%20job").body["items"]] == [7]
    assert [d["device"] for d in two.get("/api/v1/devices?job=old").body["items"]] == [0, 1, 2]
    assert two.get("/api/v1/plan?job=old").status == 200
    assert two.get("/api/v1/plan?job=new%20job").status == 503


@pytest.mark.parametrize("path", ["plan", "steps/latest", "checkpoints/latest", "decisions", "transitions", "devices"])
def test_request_that_names_no_job_is_told_which_there_are(two: Api, path: str) -> None:
    reply = two.get(f"/api/v1/{path}")
    assert reply.status == 400
    assert reply.body["type"] == "urn:nereus:problem:job-needed"
    assert reply.body["jobs"] == ["old", "new job"]
    assert "?job=" in reply.body["detail"]


def test_job_that_is_not_there_is_not_found(two: Api) -> None:
    for path in ("/api/v1/plan?job=other", "/readyz?job=other"):
        reply = two.get(path)
        assert reply.status == 404
        assert reply.body["jobs"] == ["old", "new job"]
    with all_served(FakeJobs()) as idle:
        assert idle.get("/api/v1/plan").body["jobs"] == []
        assert idle.get("/api/v1/jobs").body == {"items": [], "next_cursor": None}


def test_request_goes_to_the_controller_of_its_job_alone(two: Api) -> None:
    reply = two.post("/api/v1/replans?job=old", {"dry_run": True})
    assert reply.status == 202
    old, new = two.jobs.values()
    assert (len(old.commands), len(new.commands)) == (1, 0)
    assert reply.headers["Location"].endswith("?job=old")
    assert two.get(reply.headers["Location"]).body == reply.body
    assert two.get(f"/api/v1/replans/{reply.body['id']}?job=new%20job").status == 404
    assert two.post("/api/v1/commands", {"verb": "pause"}).status == 400


def test_job_that_comes_is_served_and_one_that_goes_is_not(two: Api) -> None:
    two.jobs["third"] = FakeController((*YOUNG, started()))
    wait_for(lambda: two.get("/api/v1/plan?job=third").status == 200)
    del two.jobs["old"]
    wait_for(lambda: two.get("/api/v1/plan?job=old").status == 404)
    assert 'nereus_job="old"' not in two.get("/metrics").text
    del two.jobs["third"]
    wait_for(lambda: two.get("/api/v1/devices").status == 200)


def test_job_whose_controller_is_gone_holds_up_no_other(two: Api) -> None:
    old, new = two.jobs.values()
    new.is_gone = True
    wait_for(lambda: two.get("/readyz").status == 503)
    assert two.get("/readyz").body["reasons"] == ["new job: the controller does not answer: it restarts"]
    old.news.extend([step(3), decision()])
    wait_for(lambda: two.get("/api/v1/steps/latest?job=old").body["step"] == 3)
    assert two.get("/readyz?job=old").status == 200
    text = two.get("/metrics").text
    assert 'nereus_job_up{nereus_job="old"} 1.0' in text
    assert 'nereus_job_up{nereus_job="new job"} 0.0' in text
    assert "nereus_controller_up 0.0" in text


def test_jobs_stay_known_while_nobody_tells_which_there_are(two: Api) -> None:
    two.jobs.is_gone = True
    wait_for(lambda: two.get("/readyz").status == 503)
    assert two.get("/api/v1/plan?job=old").status == 200


def test_command_is_about_the_job_that_it_names(two: Api) -> None:
    assert_user_error(nereus("status", "--url", two.url), "--job", "old, new job")
    assert_user_error(nereus("status", "--url", two.url, "--job", "other"), "'other'", "old, new job")
    assert_user_error(nereus("pause", "--url", two.url), "--job NAME")
    shown = nereus("status", "--url", two.url, "--job", "old")
    assert shown.returncode == 0, shown.stderr
    assert "plan, epoch 1" in shown.stdout
    assert "no plan is in force yet" in nereus("status", "--url", two.url, "--job", "new job").stdout
