"""What availability files turn into, measured ones included, and what is said about wrong ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.errors import JobFileError, UserError
from nereus.spec.traces import AvailabilityTrace, read_availability

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart-pool.csv"
TRACE = AvailabilityTrace(((10.0, 4), (20.0, 0), (40.0, 8), (50.0, 8)))


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return tmp_path / "pool.csv"


@st.composite
def traces(draw: st.DrawFn) -> AvailabilityTrace:
    times = sorted(draw(st.sets(st.integers(0, 10_000), min_size=1, max_size=12)))
    counts = draw(st.lists(st.integers(0, 40), min_size=len(times), max_size=len(times)).filter(any))
    return AvailabilityTrace(tuple((float(time), count) for time, count in zip(times, counts, strict=True)))


@pytest.mark.parametrize(("time_s", "available"), [(-5, 4), (10, 4), (19.9, 4), (20, 0), (39, 0), (40, 8), (1e9, 8)])
def test_trace_holds_each_count_until_the_next_row(time_s: float, available: int) -> None:
    assert TRACE.at(time_s) == available


def test_trace_over_steps_spreads_its_duration_and_starts_with_the_first_row() -> None:
    assert TRACE.by_steps(4) == (4, 0, 0, 8, 8)  # at 10, 20, 30, 40 and 50 s
    assert TRACE.by_steps(1) == (4, 8)
    assert AvailabilityTrace(((0.0, 3),)).by_steps(3) == (3, 3, 3, 3)


@settings(deadline=None)
@given(traces(), st.integers(1, 50))
def test_trace_over_steps_has_a_count_for_each_boundary_and_ends_with_the_last_row(
    trace: AvailabilityTrace, num_steps: int
) -> None:
    counts = trace.by_steps(num_steps)
    assert len(counts) == num_steps + 1
    assert (counts[0], counts[-1]) == (trace.points[0][1], trace.points[-1][1])
    assert set(counts) <= {count for _, count in trace.points}


@settings(deadline=None)
@given(traces(), st.integers(1, 64))
def test_scaled_trace_fits_the_cluster_and_keeps_times_and_order(trace: AvailabilityTrace, num_devices: int) -> None:
    scaled = trace.scaled(num_devices)
    pairs = sorted(zip((c for _, c in trace.points), (c for _, c in scaled.points), strict=True))
    assert [time for time, _ in scaled.points] == [time for time, _ in trace.points]
    assert all((before > 0) == (after > 0) for before, after in pairs)
    assert pairs[-1][1] == num_devices
    assert [after for _, after in pairs] == sorted(after for _, after in pairs)
    assert scaled.scaled(num_devices) == scaled


def test_trace_that_never_has_a_device_cannot_be_scaled() -> None:
    with pytest.raises(UserError, match="available_gpus: it is 0 in every row"):
        AvailabilityTrace(((0.0, 0), (5.0, 0))).scaled(8)


def test_quickstart_trace_is_made_for_eight_devices_and_changes_three_times_or_more() -> None:
    trace = read_availability(QUICKSTART)
    counts = trace.by_steps(48)
    assert trace.scaled(8) == trace
    assert sum(a != b for a, b in pairwise(counts)) >= 3
    assert counts[0] < 8


def test_every_measured_trace_reads(data_dir: Path) -> None:
    traces_read = 0
    for path in sorted((data_dir / "availability").glob("*.csv")):
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines[0].startswith("time_s,available_gpus"):
            trace = read_availability(path)
            first, last = (tuple(float(cell) for cell in line.split(",")[:2]) for line in (lines[1], lines[-1]))
            assert (trace.points[0], trace.points[-1]) == (first, last), path.name
            assert max(trace.scaled(8).by_steps(1000)) <= 8
            traces_read += 1
    assert traces_read >= 10


def test_measured_cut_of_a_spot_pool_maps_onto_eight_devices_and_six_steps(data_dir: Path) -> None:
    trace = read_availability(data_dir / "availability" / "parcae_p3_hl_15_25.csv").scaled(8)
    # of 27 28 32 31 30 31 32 31 26 25 23 23, a quarter each, halves rounded up
    assert [count for _, count in trace.points] == [7, 7, 8, 8, 8, 8, 8, 8, 7, 6, 6, 6]
    assert trace.by_steps(6) == (7, 8, 8, 8, 8, 8, 6)  # every 590 s; the fall begins at 3060 s of 3540
    assert trace.by_steps(12)[-3:] == (8, 6, 6)


@pytest.mark.parametrize(
    "text",
    [
        "time_s,available_gpus\n0,4\n7.5,2\n",
        "\ufeffzone, available_gpus ,time_s\r\neast,4,0\r\n\r\neast, 2 ,7.5\r\n",
        'time_s,"available_gpus",note\n0,"4",\n75e-1,2,"two, or\nthree"\n',
    ],
)
def test_trace_reads_whatever_the_order_of_columns_line_ends_and_quotes(trace_file: Path, text: str) -> None:
    trace_file.write_text(text, encoding="utf-8", newline="")
    assert read_availability(str(trace_file)).points == ((0.0, 4), (7.5, 2))


HEADER = "time_s,available_gpus\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": it is empty; the first line must be a header with the columns time_s and available_gpus"),
        (HEADER, ": it has no rows; below the header there must be at least one"),
        ("0,4\n9,2\n", ", line 1, time_s: '0,4' is not allowed; the header must name time_s once"),
        ("time_s,gpus\n", ", line 1, available_gpus: 'time_s,gpus' is not allowed; the header must name available_gpus"),
        (f"time_s,{HEADER}", ", line 1, time_s: 'time_s,time_s,available_gpus' is not allowed; the header must name"),
        (f"{HEADER}0,4\n9,many\n", ", line 3, available_gpus: 'many' is not allowed; it must be a whole number of devices"),
        (f"{HEADER}0,-1\n", ", line 2, available_gpus: '-1' is not allowed; it must be a whole number"),
        (f"{HEADER}0,4.0\n", ", line 2, available_gpus: '4.0' is not allowed; it must be a whole number"),
        (f"{HEADER}0\n", ", line 2, available_gpus: '' is not allowed; it must be a whole number"),
        (f"{HEADER}soon,4\n", ", line 2, time_s: 'soon' is not allowed; it must be a finite number of seconds"),
        (f"{HEADER}nan,4\n", ", line 2, time_s: 'nan' is not allowed; it must be a finite number"),
        (f"{HEADER}1e999,4\n", ", line 2, time_s: '1e999' is not allowed; it must be a finite number"),
        (f"{HEADER}5,4\n\n5,3\n", ", line 4, time_s: '5' is not allowed; times must ascend, and the row before has 5"),
        (f'{HEADER}0,"4\n', ", line 2: it must be CSV: unexpected end of data"),
    ],
)
def test_wrong_trace_is_refused_with_line_column_and_value(trace_file: Path, text: str, said: str) -> None:
    trace_file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_availability(trace_file)
    assert str(caught.value).startswith(f"{trace_file}{said}"), str(caught.value)
    assert not isinstance(caught.value, JobFileError)


def test_trace_that_is_no_text_file_is_refused(trace_file: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        read_availability(trace_file)
    trace_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="readable file of UTF-8 text"):
        read_availability(trace_file)
