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


@pytest.mark.parametrize("gone_s", [200.0, 205.0, 214.0])
def test_notice_that_is_too_short_to_wait_is_answered_at_once(gone_s: float) -> None:
    assert give_up_at(200.0, 100.0, gone_s, 50.0) == 200.0
