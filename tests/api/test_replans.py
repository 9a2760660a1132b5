"""Asking for a replan: once per key, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from nereus.control.effects import News
from nereus.policy.admission import Code
from nereus.runtime.controller import ReplanCommand
from tests.api.news import decision, started
from tests.api.served import Api, Reply, wait_for

REPLANS = "/api/v1/replans"


def keyed(api: Api, key: str, **body: bool) -> Reply:
    return api.post(REPLANS, body, {"Idempotency-Key": key})


def kind(reply: Reply) -> str:
    assert reply.headers.get_content_type() == "application/problem+json"
    assert reply.body["status"] == reply.status
    assert reply.body["title"]
    assert reply.body["detail"]
    return str(reply.body["type"])


def test_request_reaches_the_controller_and_says_where_to_look(api: Api) -> None:
    reply = api.post(REPLANS, {"dry_run": True, "forced": False})
    assert reply.status == 202
    assert reply.headers["Location"] == f"{REPLANS}/{reply.body['id']}"
    assert reply.body == {"id": reply.body["id"], "dry_run": True, "forced": False, "state": "accepted", "decisions": []}
    assert api.controller.commands == [ReplanCommand(id=reply.body["id"], dry_run=True, forced=False)]
    assert api.get(reply.headers["Location"]).body == reply.body


def test_request_without_fields_is_neither_dry_nor_forced(api: Api) -> None:
    api.post(REPLANS, {})
    assert [(c.dry_run, c.forced) for c in api.controller.commands] == [(False, False)]


def test_request_shows_what_was_decided_for_it_and_not_what_was_decided_before_or_later(api: Api) -> None:
    api.tell(decision(cycle=2, command="another"))

    def decide(command: ReplanCommand) -> Iterable[News]:
        drift = decision(cycle=3)
        asked = [decision(code, cycle=4, command=command.id) for code in (Code.REJECTED_NO_GAIN, Code.ADMITTED)]
        return [drift, *asked, decision(cycle=5, command="another")]

    api.controller.on_submit = decide
    where = api.post(REPLANS, {"forced": True}).headers["Location"]
    api.wait_until_told()
    found = api.get(where).body
    assert found["state"] == "decided"
    assert [(d["cycle"], d["code"]) for d in found["decisions"]] == [(4, "rejected_no_gain"), (4, "admitted")]


def test_same_body_under_the_same_key_asks_once(api: Api) -> None:
    first, again = keyed(api, "k", dry_run=True), keyed(api, "k", dry_run=True)
    assert (first.status, again.status) == (202, 202)
    assert (again.body["id"], again.headers["Location"]) == (first.body["id"], first.headers["Location"])
    assert len(api.controller.commands) == 1


def test_default_and_spelled_out_body_are_the_same(api: Api) -> None:
    assert keyed(api, "k").body["id"] == keyed(api, "k", dry_run=False, forced=False).body["id"]


def test_requests_under_different_keys_or_none_are_different(api: Api) -> None:
    replies = [keyed(api, "a"), keyed(api, "b"), api.post(REPLANS, {}), api.post(REPLANS, {})]
    assert len({reply.body["id"] for reply in replies}) == 4
    assert len(api.controller.commands) == 4


def test_another_body_under_the_same_key_is_refused(api: Api) -> None:
    keyed(api, "k", dry_run=True)
    reply = keyed(api, "k", dry_run=False)
    assert reply.status == 422
    assert kind(reply) == "urn:nereus:problem:key-reused"
    assert len(api.controller.commands) == 1


def test_key_that_is_in_flight_is_refused(api: Api) -> None:
    api.controller.may_answer.clear()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(keyed, api, "k")
        wait_for(lambda: len(api.controller.commands) == 1)
        reply = keyed(api, "k")
        api.controller.may_answer.set()
    assert first.result().status == 202
    assert reply.status == 409
    assert kind(reply) == "urn:nereus:problem:in-flight"


def test_request_fails_while_the_controller_is_gone_and_its_key_can_be_used_again(api: Api) -> None:
    api.controller.is_gone = True
    reply = keyed(api, "k")
    assert reply.status == 503
    assert kind(reply) == "urn:nereus:problem:controller-unavailable"
    assert reply.headers["Retry-After"] == "1"
    api.controller.is_gone = False
    assert keyed(api, "k").status == 202


def test_request_before_the_first_plan_is_refused(young: Api) -> None:
    reply = young.post(REPLANS, {})
    assert reply.status == 503
    assert kind(reply) == "urn:nereus:problem:not-ready"
    assert young.controller.commands == []
    young.controller.news.append(started())
    assert young.post(REPLANS, {}).status == 202, "a POST looks at the newest news itself"


def test_unknown_request_is_not_found(api: Api) -> None:
    reply = api.get(f"{REPLANS}/nobody")
    assert reply.status == 404
    assert kind(reply) == "urn:nereus:problem:not-found"
    assert "nobody" in reply.body["detail"]


def test_body_with_mistakes_is_refused_field_by_field(api: Api) -> None:
    reply = api.post(REPLANS, {"dry_run": "perhaps", "frced": True})
    assert reply.status == 422
    assert kind(reply) == "urn:nereus:problem:invalid-request"
    assert {e["field"] for e in reply.body["errors"]} == {"body.dry_run", "body.frced"}
    assert api.controller.commands == []


def test_body_that_is_no_json_is_refused(api: Api) -> None:
    for body in (b"", b"{", b"[]", b"\xff"):
        reply = api.post(REPLANS, body)
        assert reply.status in (400, 422), body
        assert kind(reply).startswith("urn:nereus:problem:")


def test_empty_key_is_refused(api: Api) -> None:
    assert kind(api.post(REPLANS, {}, {"Idempotency-Key": ""})) == "urn:nereus:problem:invalid-request"
