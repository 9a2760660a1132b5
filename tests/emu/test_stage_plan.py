"""Stage plans and the EMUs that they stand for."""

from __future__ import annotations

import pytest

from nereus.emu.plan import Plan, StagePlan, spans
from nereus.emu.unit import Emu, counter_tensors, phi
from nereus.errors import LayoutError
from nereus.layout.catalog import UnitId
from nereus.layout.layout import UNSHARDED, Layout, OptimizerShard
from tests.builders import ENDPOINT_OF, endpoints_of, make_plan, shape_texts


@pytest.mark.parametrize("text", [*shape_texts(8), *shape_texts(8, form="fsdp")])
def test_phi_makes_dp_units_on_disjoint_endpoints_that_cover_the_plan(text: str) -> None:
    plan = make_plan(text)
    emus = phi(plan, ENDPOINT_OF, birth_epoch=3)
    assert [e for emu in emus for e in emu.endpoints] == list(endpoints_of(plan.devices))
    assert [emu.layout for emu in emus] == [plan.layout] * plan.dp


def test_phi_names_units_by_replica_and_epoch() -> None:
    units = [emu.unit for emu in phi(make_plan("tp2 dp2"), ENDPOINT_OF, birth_epoch=3)]
    assert units == [UnitId("actor_training", 0, 3), UnitId("actor_training", 1, 3)]


def test_phi_keeps_the_order_of_devices() -> None:
    (emu,) = phi(make_plan("tp2 pp2", devices=[6, 2, 9, 4]), ENDPOINT_OF, birth_epoch=0)
    assert emu.endpoints == endpoints_of([6, 2, 9, 4])


def test_phi_of_a_zero1_plan_gives_each_replica_its_part_of_the_optimizer_state() -> None:
    emus = phi(make_plan("tp2 dp3 zero1"), ENDPOINT_OF, birth_epoch=0)
    assert [emu.optimizer for emu in emus] == [OptimizerShard(0, 3), OptimizerShard(1, 3), OptimizerShard(2, 3)]


def test_phi_of_a_plain_plan_gives_each_replica_all_of_the_optimizer_state() -> None:
    assert [emu.optimizer for emu in phi(make_plan("tp2 dp2"), ENDPOINT_OF, birth_epoch=0)] == [UNSHARDED, UNSHARDED]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("tp2 dp2", "tp2 pp1 dp2 on 0-3"),
        ("tp2 fsdp2", "tp2 pp1 fsdp2 dp1 on 0-3"),
        ("dp2 zero1", "tp1 pp1 dp2 zero1 on 0-1"),
    ],
)
def test_plan_reads_as_its_degrees_and_devices(text: str, written: str) -> None:
    assert str(make_plan(text)) == written


@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 1, 2, 3, 4)])
def test_plan_with_the_wrong_number_of_devices_is_refused(devices: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match=f"{len(devices)} devices.*takes 4"):
        StagePlan("critic_training", Layout(2), 2, devices)


def test_plan_that_names_a_device_twice_is_refused() -> None:
    with pytest.raises(LayoutError, match="twice"):
        StagePlan("critic_training", Layout(2), 1, (3, 3))


@pytest.mark.parametrize(("dp", "micro_batch"), [(0, 1), (1, 0)])
def test_plan_with_a_count_of_zero_is_refused(dp: int, micro_batch: int) -> None:
    with pytest.raises(LayoutError, match="1 or more"):
        StagePlan("critic_training", Layout(), dp, (0,) * dp, micro_batch)


def test_emu_with_the_wrong_number_of_endpoints_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"critic/0@0.*1 endpoints"):
        Emu(UnitId("critic", 0, 0), Layout(2), ("d0.0",))


def test_plan_devices_are_those_of_all_stages() -> None:
    plan = Plan(0, {"a": make_plan("tp2"), "b": make_plan("tp2", stage="b", devices=[1, 5])})
    assert plan.devices == {0, 1, 5}


@pytest.mark.parametrize(
    ("devices", "text"), [((), ""), ((4,), "4"), ((0, 1, 2, 5), "0-2,5"), ((5, 2, 1, 0), "0-2,5"), ((1, 3, 4), "1,3-4")]
)
def test_spans_are_short(devices: tuple[int, ...], text: str) -> None:
    assert spans(devices) == text


def test_counters_are_scalars_of_the_logical_state() -> None:
    assert {(tensor.shape, tensor.num_elements) for tensor in counter_tensors()} == {((), 1)}
