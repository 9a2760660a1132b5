"""The groups in which the ranks of a model-stage compute: sizes, agreement of all members, who shares what."""

from __future__ import annotations

import pytest

from nereus.emu.groups import Members, RankGroups, rank_groups
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from tests.builders import holders_of_grain, make_emus, shape_texts

SHAPES = shape_texts(8)
NAMES = ("tp", "pp", "dp", "model", "ends", "kv")


def all_groups(emus: tuple[Emu, ...], num_kv_heads: int = 2) -> dict[EndpointId, RankGroups]:
    return {
        endpoint: rank_groups(emus, index, rank, num_kv_heads)
        for index, emu in enumerate(emus)
        for rank, endpoint in enumerate(emu.endpoints)
    }


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
@pytest.mark.parametrize("text", SHAPES)
def test_members_of_a_group_all_know_the_same_group(text: str, num_kv_heads: int) -> None:
    groups = all_groups(make_emus(text), num_kv_heads)
    for endpoint, mine in groups.items():
        for name in NAMES:
            members: Members = getattr(mine, name)
            assert endpoint in members
            assert all(getattr(groups[member], name) == members for member in members), name


@pytest.mark.parametrize("text", SHAPES)
def test_groups_have_the_degrees_of_the_plan(text: str) -> None:
    emus = make_emus(text)
    sizes = (emus[0].layout.tp, emus[0].layout.pp, len(emus), emus[0].layout.tp * emus[0].layout.pp)
    for mine in all_groups(emus).values():
        assert (len(mine.tp), len(mine.pp), len(mine.dp), len(mine.model)) == sizes


@pytest.mark.parametrize("text", SHAPES)
def test_groups_of_one_kind_partition_the_endpoints(text: str) -> None:
    emus = make_emus(text)
    groups = all_groups(emus)
    for name in NAMES:
        members = [e for group in {getattr(mine, name) for mine in groups.values()} for e in group]
        assert sorted(members) == sorted(groups), name


def test_groups_of_tp2_pp2_dp2_are_written_out() -> None:
    found = rank_groups(make_emus("tp2 pp2 dp2"), 1, 1, num_kv_heads=2)
    assert found == RankGroups(
        tp=("d4.0", "d5.0"),
        pp=("d5.0", "d7.0"),
        dp=("d1.0", "d5.0"),
        model=("d4.0", "d5.0", "d6.0", "d7.0"),
        ends=("d5.0", "d7.0"),
        kv=("d5.0",),
    )


def test_rank_in_the_middle_of_a_pipeline_has_no_tied_ends() -> None:
    emus = make_emus("pp3")
    assert [rank_groups(emus, 0, rank, 2).ends for rank in range(3)] == [("d0.0", "d2.0"), ("d1.0",), ("d0.0", "d2.0")]


@pytest.mark.parametrize(("tp", "num_kv_heads"), [(4, 2), (8, 2), (8, 1), (6, 3), (4, 4), (2, 4), (8, 3), (4, 3)])
def test_kv_group_is_who_holds_the_same_kv_head(tp: int, num_kv_heads: int) -> None:
    emus = make_emus(f"tp{tp}")
    for rank in range(tp):
        heads = [head for head in range(num_kv_heads) if rank in holders_of_grain(head, num_kv_heads, tp)]
        sharing = holders_of_grain(heads[0], num_kv_heads, tp)
        assert rank_groups(emus, 0, rank, num_kv_heads).kv == tuple(f"d{other}.0" for other in sharing)


def test_all_lists_each_group_of_several_once() -> None:
    assert rank_groups(make_emus("tp2 dp2"), 0, 0, num_kv_heads=1).all() == (("d0.0", "d1.0"), ("d0.0", "d2.0"))


def test_rank_alone_has_no_group_of_several() -> None:
    assert rank_groups(make_emus("tp1"), 0, 0, num_kv_heads=1).all() == ()
