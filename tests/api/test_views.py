"""What GET tells of a job, over a real socket."""

from __future__ import annotations

import math

import pytest

from nereus.policy.admission import Code
from tests.api.news import MIB, decision, restored, saved, step, transition
from tests.api.served import Api


def test_plan_in_force_is_that_of_the_last_transition(api: Api) -> None:
    found = api.get("/api/v1/plan")
    assert found.status == 200
    assert found.body["epoch"] == 1
    assert found.body["since_step"] == 1
    assert found.body["stages"] == {
        "actor_generation": {"tp": 1, "pp": 1, "dp": 2, "devices": [0, 1], "micro_batch": 1, "recompute": False},
        "actor_training": {"tp": 1, "pp": 1, "dp": 2, "devices": [0, 1], "micro_batch": 1, "recompute": False},
    }


def test_latest_step_has_units_in_its_names(api: Api) -> None:
    found = api.get("/api/v1/steps/latest").body
    assert (found["step"], found["reward"], found["step_seconds"]) == (2, 0.75, 3.0)
    assert found["stage_seconds"] == {"weight_sync": 0.5, "actor_generation": 2.0}
    assert found["peak_bytes"] == {"d0.0": 3 * MIB, "d1.0": 5 * MIB}


def test_figures_that_json_cannot_carry_are_null(api: Api) -> None:
    api.tell(step(3, loss=math.nan, grad_norm=math.inf))
    found = api.get("/api/v1/steps/latest").body
    assert (found["step"], found["loss"], found["grad_norm"], found["kl"]) == (3, None, None, 0.25)


def test_decisions_come_newest_first_with_their_payback(api: Api) -> None:
    found = api.get("/api/v1/decisions").body
    assert found["next_cursor"] is None
    assert [(d["number"], d["code"], d["admitted"]) for d in found["items"]] == [
        (3, "admitted", True),
        (2, "rejected_payback", False),
        (1, "infeasible_memory", False),
    ]
    newest = found["items"][0]
    assert newest["payback_steps"] == 4.0
    assert (newest["delta_l_seconds"], newest["l_tran_seconds"], newest["horizon_steps"], newest["gamma"]) == (
        0.5,
        2,
        3,
        0.5,
    )
    assert newest["stages"]["actor_training"]["dp"] == 2
    assert newest["target"] == {"actor_training": "tp1 dp2 on 0-1"}
    assert newest["reason"] == "the reason is admitted"


def test_decision_without_a_gain_has_no_payback(api: Api) -> None:
    api.tell(decision(Code.REJECTED_NO_GAIN, delta_s=-0.5))
    assert api.get("/api/v1/decisions?limit=1").body["items"][0]["payback_steps"] is None


def test_transition_tells_what_was_predicted_and_what_it_came_to(api: Api) -> None:
    (found,) = api.get("/api/v1/transitions").body["items"]
    assert (found["number"], found["epoch"], found["step"]) == (1, 1, 1)
    assert (found["predicted_seconds"], found["seconds"], found["digest_seconds"]) == (1.0, 1.5, 0.25)
    assert found["stall_seconds"] == 2.25
    assert (found["moved_bytes"], found["peak_bytes"], found["setup_seconds"]) == (4096, 7 * MIB, 0.5)
    assert found["primitives"] == {"Split": 1, "Merge": 2}


def test_devices_tell_their_state_and_what_runs_on_them(api: Api) -> None:
    both = ["actor_generation", "actor_training"]
    assert api.get("/api/v1/devices").body == {
        "items": [
            {
                "device": 0,
                "endpoint": "d0.0",
                "state": "leaving",
                "since_step": 1,
                "leaves_after_step": 4,
                "model_stages": both,
            },
            {
                "device": 1,
                "endpoint": "d1.0",
                "state": "ready",
                "since_step": 0,
                "leaves_after_step": None,
                "model_stages": both,
            },
            {
                "device": 2,
                "endpoint": "d2.0",
                "state": "ready",
                "since_step": 1,
                "leaves_after_step": None,
                "model_stages": [],
            },
        ],
        "next_cursor": None,
    }


@pytest.mark.parametrize(("path", "key"), [("decisions", "number"), ("transitions", "number"), ("devices", "device")])
@pytest.mark.parametrize("limit", [1, 2, 3, 200])
def test_pages_together_are_the_whole_list_once(api: Api, path: str, key: str, limit: int) -> None:
    api.tell(transition(2), transition(3))
    whole = api.get(f"/api/v1/{path}").body["items"]
    assert len(whole) == 3
    items, cursor = [], ""
    while cursor is not None:
        page = api.get(f"/api/v1/{path}?limit={limit}{f'&cursor={cursor}' if cursor else ''}").body
        assert len(page["items"]) <= limit
        items += page["items"]
        cursor = page["next_cursor"]
    assert items == whole
    assert len({item[key] for item in items}) == len(items)


def test_page_stays_the_same_while_decisions_come_in(api: Api) -> None:
    first = api.get("/api/v1/decisions?limit=2").body
    before = api.get(f"/api/v1/decisions?cursor={first['next_cursor']}").body
    api.tell(decision(), decision())
    assert api.get(f"/api/v1/decisions?cursor={first['next_cursor']}").body == before


def test_young_job_has_empty_lists_and_no_plan(young: Api) -> None:
    for name in ("decisions", "transitions", "devices"):
        assert young.get(f"/api/v1/{name}").body == {"items": [], "next_cursor": None}
    assert young.get("/api/v1/plan").status == 503
    assert young.get("/api/v1/steps/latest").status == 404
    assert young.get("/api/v1/checkpoints/latest").status == 404


def test_latest_checkpoint_says_where_it_is_and_when_the_job_went_back(api: Api) -> None:
    api.tell(saved(2), saved(4, folder=None, error="no space is left"))
    found = api.get("/api/v1/checkpoints/latest").body
    assert (found["step"], found["folder"], found["size_bytes"]) == (2, "/checkpoints/000001-step-2", 4 * MIB)
    assert found["restored_after_step"] is None
    api.tell(restored(2, repeated_steps=3))
    assert api.get("/api/v1/checkpoints/latest").body == {**found, "restored_after_step": 5}
    assert api.get("/api/v1/plan").body["epoch"] == 3


def test_reading_asks_the_controller_for_nothing(api: Api) -> None:
    """What was told stays readable while the controller is gone."""
    before = [api.get(f"/api/v1/{name}").body for name in ("plan", "decisions", "transitions", "devices", "steps/latest")]
    api.controller.is_gone = True
    after = [api.get(f"/api/v1/{name}").body for name in ("plan", "decisions", "transitions", "devices", "steps/latest")]
    assert before == after
