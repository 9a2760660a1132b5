"""Patterns: what is compiled once and named again is what compiling the movement itself gives."""

from __future__ import annotations

from random import Random

import pytest

from nereus.emu.unit import Emu
from nereus.layout.moves import NodeOf
from nereus.transition.dag import transition_dag
from nereus.transition.local import local_dag
from nereus.transition.lowering import compile_movement
from nereus.transition.movement import Movement, fused, resharded, unfused
from nereus.transition.patterns import _compiled, movement_of_pattern
from tests.builders import (
    ENDPOINT_OF,
    NUM_DEVICES,
    STAGE,
    degrees,
    make_emus,
    make_layout,
    make_model,
    make_plan,
    thin_state,
)
from tests.layout.cases import SHAPES
from tests.layout.models import thin_trained_state

TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))
UNTIED = thin_state(make_model(tied=False))


def random_movements(seed: int) -> tuple[tuple[Movement, ...], NodeOf]:
    """The movements of a transition between any two plans, on any devices of three nodes.

    Device numbers go beyond ten, so that names in the order of their text are not in the order of their numbers.
    """
    random = Random(seed)
    source, target = random.choice(SHAPES), random.choice(SHAPES)
    before, after = (random.sample(range(5, 17), make_layout(text).size * degrees(text)["dp"]) for text in (source, target))
    current, plan = make_emus(source, devices=before), make_plan(target, devices=after)
    node_of = {ENDPOINT_OF[device]: random.randrange(3) for device in range(NUM_DEVICES)}
    dag = local_dag(current, plan, ENDPOINT_OF, 1, node_of)
    if plan.zero1 or current[0].optimizer.parts > 1:
        result = make_emus(target, devices=after, epoch=2)
        return resharded(dag, current, result), node_of
    return (*fused(dag, current, lambda movement: set()), *unfused(dag)), node_of


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_compiled_pattern_is_the_movement_compiled_itself(first: int) -> None:
    for seed in range(first, first + 40):
        movements, node_of = random_movements(seed)
        for movement in movements:
            if movement.makes:
                found = movement_of_pattern(movement, TRAINED, node_of, compile_movement)
                assert found == compile_movement(movement, TRAINED, node_of), seed


def test_compiled_pattern_does_not_depend_on_what_was_compiled_before() -> None:
    movements = [movement for seed in range(30) for movement in random_movements(seed)[0] if movement.makes]
    warm = [movement_of_pattern(movement, TRAINED, {}, compile_movement) for movement in movements]
    for movement, known in zip(reversed(movements), reversed(warm), strict=True):
        _compiled.cache_clear()
        assert movement_of_pattern(movement, TRAINED, {}, compile_movement) == known


def on_devices(offset: int) -> tuple[Emu, ...]:
    return make_emus("tp2 pp2", devices=range(offset, offset + 4))


def compiled_anew(offset: int, state_of: str = "trained", node_of: NodeOf | None = None) -> int:
    """Patterns that the transition of a unit from tp2 pp2 to tp4, from this device on, has to compile."""
    state = TRAINED if state_of == "trained" else UNTIED
    before = _compiled.cache_info().misses
    plan = make_plan("tp4", devices=range(offset, offset + 4))
    transition_dag({STAGE: on_devices(offset)}, {STAGE: plan}, {STAGE: state}, ENDPOINT_OF, 1, node_of)
    return _compiled.cache_info().misses - before


def test_alike_movements_on_other_devices_are_compiled_once() -> None:
    _compiled.cache_clear()
    assert [compiled_anew(offset) for offset in (10, 20, 30, 104)] == [1, 0, 0, 0]


def test_movement_on_other_nodes_is_another_pattern() -> None:
    _compiled.cache_clear()
    apart = {ENDPOINT_OF[device]: device // 2 for device in range(NUM_DEVICES)}
    assert [compiled_anew(20), compiled_anew(20, node_of=apart), compiled_anew(40, node_of=apart)] == [1, 1, 0]


def test_movement_of_another_state_is_another_pattern() -> None:
    _compiled.cache_clear()
    assert [compiled_anew(20), compiled_anew(20, "untied")] == [1, 1]


def test_replicas_of_one_stage_that_split_alike_are_compiled_once() -> None:
    """The hundred replicas of a model-stage cost as much as one."""
    _compiled.cache_clear()
    current = make_emus("tp4 dp16", devices=range(20, 84))
    plan = make_plan("tp2 dp32", devices=[start + rank for start in range(20, 84, 4) for rank in (0, 2, 1, 3)])
    transition = transition_dag({STAGE: current}, {STAGE: plan}, {STAGE: TRAINED}, ENDPOINT_OF, 1)
    assert transition.counts == {"Split": 16}
    assert _compiled.cache_info().misses == 1
