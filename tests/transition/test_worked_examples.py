"""The paper's examples as whole transitions, fused and unfused: Fig. 1(b), Fig. 6 and 16 -> 32.

The paper does not fix which GPUs a T_sub unit takes, nor the layouts of the actor and the critic: (4, 2) units on 1-16 and
17-32 here. Devices have the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.transition.arrange import arrange
from nereus.transition.dag import transition_dag
from nereus.transition.feasibility import check_memory
from nereus.transition.ops import BUCKET_BYTES, Op, Transition
from tests.builders import (
    DEVICE_OF,
    ENDPOINT_OF,
    ONE_NODE,
    devices_of,
    make_emus,
    make_model,
    make_plan,
    make_state,
)
from tests.transition.scenarios import always, replay, wrong_shards

ACTOR, CRITIC, REWARD = "actor_training", "critic_training", "reward_inference"
MODEL = make_model(tied=False, num_layers=8, num_heads=8, num_kv_heads=8).model_copy(update={"ffn_size": 16})
CUT = StateSpec(tuple(t for t in make_state(MODEL).tensors if t.layer is not None and t.axis is not None), 8)
"""Layers alone, every tensor shared out evenly over 1, 2, 4 and 8 ranks: bytes come out as in the paper's formulas."""

BYTES = sum(4 * tensor.num_elements for tensor in CUT.tensors)
"""B: all state of one unit."""


def transition_of(
    current: Mapping[str, tuple[Emu, ...]], targets: Mapping[str, StagePlan], *, fuse: bool, bucket_bytes: int = BUCKET_BYTES
) -> Transition:
    states = dict.fromkeys(current, CUT)
    return transition_dag(current, targets, states, ENDPOINT_OF, 1, exclusive=always, fuse=fuse, bucket_bytes=bucket_bytes)


def written(transition: Transition) -> list[tuple[str, str]]:
    """Each operation's model-stage and primitives."""
    return [(op.stage, "+".join(dict.fromkeys(op.primitives))) for op in transition.ops]


def released(op: Op) -> set[int]:
    return {DEVICE_OF[site.endpoint] for site in op.frees}


def assert_each_stage_is_carried_over(current: Mapping[str, tuple[Emu, ...]], transition: Transition) -> None:
    for stage, emus in current.items():
        run = replay(CUT, emus, [op for op in transition.ops if op.stage == stage])
        assert wrong_shards(CUT, run, [emu for emu in transition.result if emu.stage == stage]) == []


# --- Fig. 6 ------------------------------------------------------------------------------------------------------------

FIGURE_6 = {
    ACTOR: make_emus("tp4 pp2 dp2", stage=ACTOR, devices=range(1, 17)),
    CRITIC: make_emus("tp4 pp2 dp2", stage=CRITIC, devices=range(17, 33)),
    REWARD: make_emus("tp4 pp8", stage=REWARD, devices=range(33, 65)),
}


SHRUNK = arrange(FIGURE_6[REWARD], make_plan("tp8 pp2", stage=REWARD, devices=range(33, 49)), DEVICE_OF, ONE_NODE)
"""Reward goes from (4, 8) on 33-64 to (8, 2) on 33-48."""


def figure_6(*, fuse: bool) -> Transition:
    """The actor takes 49-56 from the reward, the critic 57-64."""
    targets = {
        ACTOR: make_plan("tp4 pp2 dp3", stage=ACTOR, devices=[*range(1, 17), *range(49, 57)]),
        CRITIC: make_plan("tp4 pp2 dp3", stage=CRITIC, devices=[*range(17, 33), *range(57, 65)]),
        REWARD: SHRUNK,
    }
    return transition_of(FIGURE_6, targets, fuse=fuse)


def reward_peaks(*, fuse: bool) -> dict[int, int]:
    """The peak of each GPU of the reward alone, with buffers of a byte each way."""
    current = {REWARD: FIGURE_6[REWARD]}
    transition = transition_of(current, {REWARD: SHRUNK}, fuse=fuse, bucket_bytes=1)
    peaks = check_memory(transition, current[REWARD], {REWARD: CUT}, 1e12).peak_bytes
    return {DEVICE_OF[endpoint]: size for endpoint, size in peaks.items()}


def test_figure_6_unfused_is_split_destroy_twice_merge_and_two_extends() -> None:
    assert written(figure_6(fuse=False)) == [
        *[(REWARD, "Split"), (REWARD, "Destroy"), (REWARD, "Destroy"), (REWARD, "Merge")],
        *[(ACTOR, "Extend"), (CRITIC, "Extend")],
    ]


def test_figure_6_fused_moves_once_before_it_releases() -> None:
    assert written(figure_6(fuse=True)) == [
        *[(REWARD, "Split+Merge"), (REWARD, "Destroy"), (REWARD, "Destroy")],
        *[(ACTOR, "Extend"), (CRITIC, "Extend")],
    ]


@pytest.mark.parametrize("fuse", [True, False])
def test_figure_6_counts_the_primitives_of_the_paper(fuse: bool) -> None:
    assert figure_6(fuse=fuse).counts == {"Split": 1, "Destroy": 2, "Merge": 1, "Extend": 2}


@pytest.mark.parametrize("fuse", [True, False])
def test_figure_6_releases_gpus_49_to_64_after_the_split(fuse: bool) -> None:
    split, *rest = figure_6(fuse=fuse).ops
    destroys = [op for op in rest if op.is_release]
    assert set.union(*map(released, destroys)) == set(range(49, 65))
    assert {op.after for op in destroys} == {(split.id,)}


@pytest.mark.parametrize("fuse", [True, False])
def test_figure_6_extends_wait_for_the_release_of_their_gpus(fuse: bool) -> None:
    ops = figure_6(fuse=fuse).ops
    for extend in ops[-2:]:
        acquired = {device for emu in extend.makes for device in devices_of(emu)}
        assert set(extend.after) == {op.id for op in ops if op.is_release and released(op) & acquired}


@pytest.mark.parametrize("fuse", [True, False])
def test_figure_6_holds_no_destroy_back(fuse: bool) -> None:
    """The actor and the critic wait for them, so they cannot wait for the proof."""
    assert figure_6(fuse=fuse).held == ()


@pytest.mark.parametrize("fuse", [True, False])
def test_figure_6_carries_every_stage_over(fuse: bool) -> None:
    assert_each_stage_is_carried_over(FIGURE_6, figure_6(fuse=fuse))


def test_figure_6_fused_holds_old_and_new_shards_and_no_t_sub_copy() -> None:
    """Of 16 GB, 500 and 1,000 MB on 33-48, 500 MB on 49-64: B/32 before, B/16 after."""
    expected = {device: BYTES // 32 + (BYTES // 16 if device < 49 else 0) for device in range(33, 65)}
    assert reward_peaks(fuse=True) == pytest.approx(expected, abs=2)


def test_figure_6_unfused_holds_a_t_sub_copy_on_every_gpu() -> None:
    """2,000 MB more everywhere: B/8. Inputs live until the commit, so that the old units stand until the proof."""
    merged = {device: BYTES // 16 if device < 49 else 0 for device in range(33, 65)}
    expected = {device: BYTES // 32 + BYTES // 8 + size for device, size in merged.items()}
    assert reward_peaks(fuse=False) == pytest.approx(expected, abs=2)


def test_figure_6_fused_sends_what_the_sixteen_gpus_lack() -> None:
    """Each of 33-48 needs B/16. They hold the first half of the layers: eight of them have B/64 of what they need, and
    the eight that take the second half have nothing of it."""
    assert figure_6(fuse=True).ops[0].num_bytes == 16 * BYTES // 16 - 8 * BYTES // 64


def test_figure_6_unfused_sends_a_t_sub_copy_to_every_gpu() -> None:
    """Each of 32 needs B/8. The sixteen that take the half of the layers that they are in have B/32 of it."""
    assert figure_6(fuse=False).ops[0].num_bytes == 32 * BYTES // 8 - 16 * BYTES // 32


# --- 16 -> 32 ----------------------------------------------------------------------------------------------------------

SIXTEEN = {
    ACTOR: make_emus("pp4 dp2", stage=ACTOR, devices=range(1, 9)),
    CRITIC: make_emus("pp4 dp2", stage=CRITIC, devices=range(9, 17)),
}


def thirty_two(*, fuse: bool) -> Transition:
    """Actor (1, 4) x 2 -> (2, 4) x 2 with 17-24, critic (1, 4) x 2 -> (1, 4) x 4 with 25-32."""
    actor = [*range(1, 9), *range(17, 25)]
    targets = {
        ACTOR: arrange(SIXTEEN[ACTOR], make_plan("tp2 pp4 dp2", stage=ACTOR, devices=actor), DEVICE_OF, ONE_NODE),
        CRITIC: make_plan("pp4 dp4", stage=CRITIC, devices=[*range(9, 17), *range(25, 33)]),
    }
    return transition_of(SIXTEEN, targets, fuse=fuse)


def test_16_to_32_unfused_extends_four_times_and_merges_twice() -> None:
    """T_sub = (1, 4), so there is no Split, no Destroy and no edge between the stages."""
    transition = thirty_two(fuse=False)
    assert written(transition) == [*[(ACTOR, "Extend")] * 2, *[(ACTOR, "Merge")] * 2, *[(CRITIC, "Extend")] * 2]
    actor = {op.id for op in transition.ops if op.stage == ACTOR}
    assert not any(actor & set(op.after) for op in transition.ops if op.stage == CRITIC)


def test_16_to_32_fused_extends_into_the_merged_unit() -> None:
    assert written(thirty_two(fuse=True)) == [
        *[(ACTOR, "Extend+Merge"), (ACTOR, "Merge")],
        *[(CRITIC, "Extend")] * 2,
    ]


@pytest.mark.parametrize("fuse", [True, False])
def test_16_to_32_counts_the_primitives_of_the_paper(fuse: bool) -> None:
    assert thirty_two(fuse=fuse).counts == {"Extend": 4, "Merge": 2}


def test_16_to_32_fused_sends_each_new_rank_half_of_what_it_gets_unfused() -> None:
    """Extend then Merge sends 4 GB per rank where 2 are needed."""
    sent = {fuse: sum(op.num_bytes for op in thirty_two(fuse=fuse).ops if op.stage == ACTOR) for fuse in (True, False)}
    assert sent == {False: 2 * BYTES, True: BYTES}


@pytest.mark.parametrize("fuse", [True, False])
def test_16_to_32_carries_every_stage_over(fuse: bool) -> None:
    assert_each_stage_is_carried_over(SIXTEEN, thirty_two(fuse=fuse))


# --- Fig. 1(b) ---------------------------------------------------------------------------------------------------------


def test_critic_of_figure_1b_waits_for_the_actor_to_release_gpu_10() -> None:
    """Destroy of the actor_training unit on GPU 10, then Extend of critic_training onto it, by an edge."""
    current = {
        ACTOR: make_emus("dp2", stage=ACTOR, devices=[9, 10]),
        CRITIC: make_emus("tp1", stage=CRITIC, devices=[11]),
    }
    targets = {
        ACTOR: make_plan("dp1", stage=ACTOR, devices=[9]),
        CRITIC: make_plan("dp2", stage=CRITIC, devices=[11, 10]),
    }
    destroy, extend = transition_of(current, targets, fuse=True).ops
    assert (destroy.primitives, extend.primitives) == (("Destroy",), ("Extend",))
    assert extend.after == (destroy.id,)
