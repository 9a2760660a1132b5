"""Drift files: three shapes, told apart by their columns, and what is refused with line, column and value."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from nereus.errors import UserError
from nereus.spec.drift import Drift, Target, What, parse_target
from nereus.spec.drift_file import read_drift
from nereus.spec.hardware import LinkClass

NODE, NETWORK = LinkClass.NODE, LinkClass.NETWORK


def read(folder: Path, text: str) -> Drift:
    path = folder / "d.csv"
    path.write_text(text, encoding="utf-8")
    return read_drift(path)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("3", Target(What.DEVICE, (3,))),
        ("node:2", Target(What.NODE, (2,))),
        ("link:node", Target(What.LINK, (), NODE)),
        ("link:network", Target(What.LINK, (), NETWORK)),
        ("link:network:5", Target(What.LINK, (5,), NETWORK)),
        ("link:7-2", Target(What.LINK, (2, 7), NETWORK)),
    ],
)
def test_targets_are_devices_nodes_and_links(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "-1", "d3", "node:", "link:", "link:nvlink", "link:2-2", "link:1-2-3", "node:1 ", "٣"])
def test_other_names_are_no_targets(text: str) -> None:
    assert parse_target(text) is None


def test_a_factor_holds_until_the_next_row_of_its_target(tmp_path: Path) -> None:
    drift = read(tmp_path, "time_s,device_or_link,factor,why\n0,3,1.5,hot\n10,link:network,2,\n5,7,1.1\n20.5,3,1,\n")
    three, network = Target(What.DEVICE, (3,)), Target(What.LINK, (), NETWORK)
    assert [drift.factor(three, at) for at in (-1, 0, 20, 20.5, 1e9)] == [1, 1.5, 1.5, 1, 1]
    assert drift.at(10) == {three: 1.5, network: 2.0, Target(What.DEVICE, (7,)): 1.1}
    assert drift.times == (0, 5, 10, 20.5)


def test_a_table_by_iteration_gives_each_worker_over_its_own_median(tmp_path: Path) -> None:
    drift = read(tmp_path, "iteration,worker0_time_norm,worker4_time_norm\n1,100,40\n11,,80\n21,100,40\n31,150,40\n")
    zero, four = Target(What.DEVICE, (0,)), Target(What.DEVICE, (4,))
    assert [drift.factor(zero, at) for at in (1, 11, 21, 31)] == [1, 1, 1, 1.5]
    assert [drift.factor(four, at) for at in (1, 11, 21, 31)] == [1, 2, 1, 1]
    assert drift.stretched(60).factor(four, 11 * 60) == 2


def test_a_table_of_machines_numbers_them_as_they_come(tmp_path: Path) -> None:
    drift = read(tmp_path, "region,sku,vm,time_s,rel_speed\neast,a,2,0,0.5\nwest,a,2,0,1.25\neast,a,2,60,1\n")
    assert drift.at(0) == {Target(What.DEVICE, (0,)): 2.0, Target(What.DEVICE, (1,)): 0.8}
    assert drift.at(60) == {Target(What.DEVICE, (1,)): 0.8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty.*time_s,device_or_link,factor"),
        ("time_s,device,factor\n", "line 1, header: 'time_s,device,factor'.*iteration.*rel_speed"),
        ("time_s,device_or_link,factor,factor\n", "line 1, header.*it must name factor once"),
        ("time_s,device_or_link,factor\n", "it has no rows"),
        ("time_s,device_or_link,factor\nnan,3,1\n", "line 2, time_s: 'nan'.*finite number of seconds"),
        ("time_s,device_or_link,factor\n\n0,gpu3,1\n", "line 3, device_or_link: 'gpu3'.*a device number"),
        ("time_s,device_or_link,factor\n0,3\n", "line 2, factor: ''.*above 0"),
        ("time_s,device_or_link,factor\n0,3,0\n", "line 2, factor: '0'.*above 0"),
        ("time_s,device_or_link,factor\n0,3,1001\n", "line 2, factor: '1001'.*up to 1000"),
        ("time_s,device_or_link,factor\n5,3,1\n5,4,1\n5,3,2\n", "line 4, time_s: '5'.*row of device:3 before, 5"),
        ("iteration,loss\n1,2\n", "line 1, header.*columns workerN_time_norm"),
        ("iteration,worker0_time_norm\n-1,2\n", "line 2, iteration: '-1'"),
        ("iteration,worker0_time_norm\n1,2\n1,2\n", "line 3, iteration: '1'.*row of the table before, 1"),
        ("iteration,worker0_time_norm\n1,fast\n", "line 2, worker0_time_norm: 'fast'.*above 0, or empty"),
        ("region,sku,vm,time_s,rel_speed\na,b,c,0,0\n", "line 2, rel_speed: '0'.*0.001 or more"),
        ('time_s,device_or_link,factor\n0,"3,1\n', "readable CSV"),
    ],
)
def test_wrong_drift_is_refused_by_line_column_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, text)


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        read_drift(tmp_path / "none.csv")


def test_drift_is_stretched_by_a_finite_factor_only() -> None:
    for by in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UserError, match="stretch of a drift"):
            Drift({}).stretched(by)


@pytest.mark.parametrize("job", [1, 2, 3, 4])
def test_measured_mini_batches_are_around_one_at_each_worker(data_dir: Path, job: int) -> None:
    drift = read_drift(data_dir / "drift" / f"alibaba_minibatch_job{job}.csv")
    assert sorted(target.places[0] for target in drift.series) == list(range(10))
    for points in drift.series.values():
        assert median(factor for _, factor in points) == pytest.approx(1.0)


def test_measured_machines_have_the_speeds_of_the_file(data_dir: Path) -> None:
    path = data_dir / "drift" / "azure_vm_membw_long.csv"
    drift, speeds = read_drift(path), defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            speeds[row["region"], row["sku"], row["vm"]].append(float(row["rel_speed"]))
    found = [[1 / factor for _, factor in drift.series[Target(What.DEVICE, (place,))]] for place in range(len(speeds))]
    assert found == [pytest.approx(values) for values in speeds.values()]
