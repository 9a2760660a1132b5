"""Transitions between processes in every form and every way: after each, all shards are the oracle's, cut afresh.

walk of 72 transitions = 4 models x 18; a model starts where the last one ended, on newborn units
"""

from __future__ import annotations

import pytest

from tests.builders import make_emus
from tests.transport.carrying import carry_out, plan_of
from tests.transport.chain import START, possible_features, seen_features, walk
from tests.transport.fleet import Fleet
from tests.transport.models import STATES

STEPS_EACH = 18


def test_walk_covers_every_layout_direction_form_and_way() -> None:
    assert set(possible_features()) <= seen_features(walk())
    assert len(walk()) == STEPS_EACH * len(STATES) >= 60


@pytest.mark.gloo
@pytest.mark.parametrize("name", STATES)
def test_transitions_of_the_walk_keep_the_logical_state_bit_for_bit(fleet: Fleet, name: str) -> None:
    state, first = STATES[name](), STEPS_EACH * list(STATES).index(name)
    steps = walk()
    emus = make_emus(steps[first - 1].text if first else START, epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    for index, step in enumerate(steps[first : first + STEPS_EACH]):
        plan = plan_of(emus, step.text, step.devices, state if index % 2 else None)
        try:
            emus = carry_out(fleet, emus, plan, state, step.mode)
        except Exception as error:
            error.add_note(f"at {step}")
            raise
