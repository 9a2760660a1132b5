"""The paper's examples of one model-stage, primitive by primitive: Fig. 5, Fig. 6 and the growth from 16 to 32 GPUs."""

from __future__ import annotations

from collections import Counter

import pytest

from nereus.emu.unit import Emu
from nereus.transition.arrange import arrange
from nereus.transition.local import local_dag
from tests.builders import DEVICE_OF, ENDPOINT_OF, ONE_NODE, devices_of, make_emu, make_emus, make_plan
from tests.transition.scenarios import counts, dag_between, sub_units, written


def test_reward_inference_of_figure_6_is_split_in_four_loses_two_and_merges_two() -> None:
    """(tp4, pp8) on GPUs 33-64 -> (tp8, pp2) on 16 of them; T_sub = (gcd(4, 8), gcd(8, 2)) = (4, 2)."""
    current = make_emus("tp4 pp8", devices=range(33, 65))
    dag = dag_between(current, "tp8 pp2", devices=[*_kept_devices(current)])
    assert [(verb, [len(devices) for devices in units]) for verb, units in written(dag)] == [
        ("Split", [8, 8, 8, 8]),
        ("Destroy", [8]),
        ("Destroy", [8]),
        ("Merge", [16]),
    ]
    assert [sorted(step.after) for step in dag.steps] == [[], [0], [0], [0]]


def _kept_devices(current: tuple[Emu, ...]) -> tuple[int, ...]:
    """The devices, in rank order, of a (tp8, pp2) unit over the first two units of T_sub."""
    devices = [device for unit in sub_units(current, "tp8 pp2")[:2] for device in devices_of(unit)]
    return arrange(current, make_plan("tp8 pp2", devices=devices), DEVICE_OF, ONE_NODE).devices


def test_reward_inference_of_figure_6_releases_gpus_49_to_64() -> None:
    """The paper's own GPUs: the two Destroys release 49-64, for which the actor and the critic wait."""
    current = make_emus("tp4 pp8", devices=range(33, 65))
    plan = arrange(current, make_plan("tp8 pp2", devices=range(33, 49)), DEVICE_OF, ONE_NODE)
    dag = local_dag(current, plan, ENDPOINT_OF, birth_epoch=1)
    destroyed = [device for verb, units in written(dag) if verb == "Destroy" for unit in units for device in unit]
    assert sorted(destroyed) == list(range(49, 65))


def test_actor_of_the_16_to_32_example_extends_both_units_and_merges_pairs() -> None:
    """(tp1, pp4) x 2 -> (tp2, pp4) x 2: T_sub = (1, 4), so no Split, no Destroy (paper, section 5.1)."""
    current = make_emus("pp4 dp2", devices=range(8))
    plan = arrange(current, make_plan("tp2 pp4 dp2", devices=[*range(8), *range(16, 24)]), DEVICE_OF, ONE_NODE)
    dag = local_dag(current, plan, ENDPOINT_OF, birth_epoch=1)
    assert [(verb, [len(d) for d in units]) for verb, units in written(dag)] == [
        ("Extend", [4]),
        ("Extend", [4]),
        ("Merge", [8]),
        ("Merge", [8]),
    ]
    assert [devices for _, units in written(dag)[:2] for devices in units] == [(16, 17, 18, 19), (20, 21, 22, 23)]
    assert {step.primitive.reads for step in dag.steps[:2]} == {(current[0],), (current[1],)}


def test_critic_of_the_16_to_32_example_extends_both_units() -> None:
    """(tp1, pp4) x 2 -> (tp1, pp4) x 4."""
    current = make_emus("pp4 dp2", devices=range(8, 16))
    dag = dag_between(current, "pp4 dp4", devices=[*range(8, 16), *range(24, 32)])
    assert written(dag) == [("Extend", [(24, 25, 26, 27)]), ("Extend", [(28, 29, 30, 31)])]
    assert {step.primitive.reads for step in dag.steps} == {(current[0],), (current[1],)}
    assert dag.result[:2] == current


@pytest.mark.parametrize(("whole", "part"), [("pp2", "pp1 dp2"), ("tp2", "tp1 dp2")])
def test_split_of_figure_5a_is_one_step(whole: str, part: str) -> None:
    assert written(dag_between(make_emus(whole), part)) == [("Split", [(0,), (1,)])]


@pytest.mark.parametrize(("parts", "whole"), [("tp1 dp2", "tp2"), ("pp2 dp2", "pp4")])
def test_merge_of_figure_5b_is_one_step(parts: str, whole: str) -> None:
    assert counts(dag_between(make_emus(parts), whole)) == Counter(Merge=1)


def test_extend_of_figure_5c_is_two_steps() -> None:
    assert counts(dag_between(make_emus("tp2 dp2"), "tp2 dp4")) == Counter(Extend=2)


def test_destroy_of_figure_5d_is_one_step() -> None:
    assert written(dag_between(make_emus("tp2 dp2"), "tp2 dp1")) == [("Destroy", [(2, 3)])]


def test_merge_waits_for_the_extend_that_fills_its_slot() -> None:
    dag = dag_between((make_emu("tp1"),), "tp2")
    assert [(verb, after) for (verb, _), after in zip(written(dag), (s.after for s in dag.steps), strict=True)] == [
        ("Extend", frozenset()),
        ("Merge", frozenset({0})),
    ]
