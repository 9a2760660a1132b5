"""When a step is given up for devices that leave before its end."""

from __future__ import annotations

import pytest

from nereus.policy.notice import MOVING_S, give_up_at


def test_step_that_is_expected_to_outlast_its_devices_is_given_up_at_once() -> None:
    """Begun at 100, expected to end at 400; the devices are gone at 320, told of at 200."""
    assert give_up_at(200.0, 100.0, 320.0, 300.0) == 200.0


def test_step_that_is_expected_to_end_in_time_has_until_state_must_move() -> None:
    assert give_up_at(200.0, 100.0, 320.0, 219.0) == 320.0 - MOVING_S


def test_step_of_which_nothing_is_known_has_until_state_must_move() -> None:
    assert give_up_at(200.0, 100.0, 320.0, None) == 320.0 - MOVING_S


@pytest.mark.parametrize("gone_s", [200.0, 205.0, 210.0])
def test_notice_that_is_too_short_to_wait_is_answered_at_once(gone_s: float) -> None:
    assert give_up_at(200.0, 100.0, gone_s, 50.0) == 200.0


@pytest.mark.parametrize(("l_tran_s", "margin_s"), [(1.5, 3.0), (4.0, 8.0), (60.0, MOVING_S)])
def test_step_runs_on_while_there_is_twice_the_time_that_moving_is_predicted_to_take(
    l_tran_s: float, margin_s: float
) -> None:
    assert give_up_at(200.0, 100.0, 320.0, 219.0, l_tran_s) == 320.0 - margin_s


def test_prediction_of_moving_keeps_no_step_alive_that_outlasts_its_devices() -> None:
    assert give_up_at(200.0, 100.0, 320.0, 300.0, 1.0) == 200.0
