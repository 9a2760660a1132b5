"""Scripted transitions: who is there after each, and which model-stage may be where."""

from __future__ import annotations

from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.spec.loading import parse_job

WRONG_TRANSITIONS = [
    ("[1].step", {"step": 4, "leave": [6]}, "4 is not allowed; it must be above the step of the transition before, 4"),
    ("[1].step", {"step": 12, "stages": {"actor_generation": {}}}, "12 is not allowed; it must be below steps, which is 12"),
    ("[1].step", {"step": 0}, "it must be at least 1"),
    ("[1]", {"step": 8}, "must name at least one of join, leave and stages"),
    ("[1].join", {"step": 8, "join": [5]}, "5 is not allowed; only an absent device can join; present before it: 0-7"),
    ("[1].join", {"step": 8, "join": [9]}, "'9' is not allowed; the devices of the cluster are 0-7"),
    ("[1].leave", {"step": 8, "leave": [8]}, "'8' is not allowed; the devices of the cluster are 0-7"),
    ("[1].leave", {"step": 8, "leave": [7]}, "7 is not allowed; actor_training stays on it; move actor_training"),
    ("[1].leave", {"step": 8, "leave": [1, 1]}, "'1,1' is not allowed; a device can be named once only"),
    ("[1].stages.critic", {"step": 8, "stages": {"critic": {}}}, "there is no such model-stage"),
    ("[1].stages.actor_training.tp", {"step": 8, "stages": {"actor_training": {"tp": 3}}}, "1, 2 or 4"),
    ("[1].stages.actor_training.dp", {"step": 8, "stages": {"actor_training": {"dp": 5}}}, "the global batch of 24"),
    (
        "[1].stages.actor_training.devices",
        {"step": 8, "leave": "6-7", "stages": {"actor_training": {"dp": 2, "devices": "5-6"}}},
        "'6' is not allowed; not there after it; the devices that are there: 0-5",
    ),
]


@pytest.mark.parametrize(("field", "transition", "allowed"), WRONG_TRANSITIONS)
def test_job_file_with_a_wrong_transition_is_refused(make_data: Any, field: str, transition: object, allowed: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_job(make_data(("transitions[1]", transition)))
    assert str(caught.value).startswith(f"transitions{field}: "), str(caught.value)
    assert allowed in str(caught.value)


def test_device_that_is_absent_cannot_leave(make_data: Any) -> None:
    with pytest.raises(JobFileError, match=r"transitions\[0\]\.leave: 6 is not allowed; only a present device can leave"):
        parse_job(make_data(("transitions", [{"step": 1, "leave": [6]}])))


def test_device_that_left_can_join_again(make_data: Any) -> None:
    again = {"step": 9, "join": "6-7", "stages": {"actor_training": {"dp": 4, "devices": "4-7"}}}
    data = make_data()
    job = parse_job(data | {"transitions": [*data["transitions"], again]})
    assert [transition.join for transition in job.transitions] == [(6, 7), (), (6, 7)]


def test_model_stage_cannot_come_back_to_a_device_that_left(make_data: Any) -> None:
    back = {"step": 9, "stages": {"actor_training": {"dp": 2, "devices": "6-7"}}}
    data = make_data()
    with pytest.raises(JobFileError, match=r"transitions\[2\]\.stages\.actor_training\.devices: '6-7' is not allowed"):
        parse_job(data | {"transitions": [*data["transitions"], back]})


def test_device_cannot_join_and_leave_in_one_transition(make_data: Any) -> None:
    both = {"step": 2, "join": [6], "leave": [6]}
    with pytest.raises(JobFileError, match=r"transitions\[0\]\.leave: 6 is not allowed"):
        parse_job(make_data(("transitions", [both])))
