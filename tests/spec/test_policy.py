"""A job that changes its plan by itself: its policy, and the trace that its pool follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nereus.errors import JobFileError
from nereus.spec.job import Job
from nereus.spec.loading import availability_of, load_job, parse_job, with_availability
from nereus.spec.policy import Policy

ADAPTS = (("policy", {"adapt": True}), ("transitions", []))


@pytest.fixture
def write(make_data: Any, missing: str, tmp_path: Path) -> Any:
    """`write("time,count ...", edits)`: a job file beside a trace, of which 6 of 8 devices are there at the start."""

    def written(rows: str | None = "0,6 60,8 120,4 180,4", *edits: tuple[str, Any]) -> Path:
        if rows is not None:
            trace = "\n".join(["time_s,available_gpus", *rows.split()])
            (tmp_path / "pool.csv").write_text(trace, encoding="utf-8")
        path = tmp_path / "job.yaml"
        data = make_data(*ADAPTS, ("availability", "pool.csv"), ("absent", missing), *edits)
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        return path

    return written


def refusal(path: Path) -> str:
    with pytest.raises(JobFileError) as caught:
        load_job(path)
    return str(caught.value)


def test_policy_defaults_are_the_constants_of_the_paper() -> None:
    policy = Policy()
    assert (policy.adapt, policy.top, policy.notice_steps, policy.headroom) == (False, 4, 2, 0.1)
    assert (policy.gamma, policy.delta_length) == (0.5, 0.3)  # sections 4.3 and 4.1


def test_job_does_not_adapt_unless_it_says_so(make_data: Any) -> None:
    job = parse_job(make_data())
    assert job.policy == Policy()
    assert job.availability is None
    assert availability_of(job) is None


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("gamma", 1.5, "it must be at most 1"),
        ("delta_compute", 0, "it must be above 0"),
        ("max_transitions_per_hour", 0, "it must be above 0"),
        ("canary_steps", -1, "it must be at least 0"),
        ("gamma", -0.1, "it must be at least 0"),
        ("delta_length", 0, "it must be above 0"),
        ("headroom", 1, "it must be below 1"),
        ("top", 0, "it must be at least 1"),
        ("notice_steps", 0, "it must be at least 1"),
        ("notice_steps", 1.5, "it must be a whole number"),
        ("adapt", "always", "it must be true or false"),
        ("gama", 0.5, "there is no such field, did you mean gamma?"),
    ],
)
def test_job_file_with_a_wrong_policy_is_refused(make_data: Any, field: str, value: object, allowed: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_job(make_data(("policy", {field: value})))
    assert str(caught.value).startswith(f"policy.{field}: {value!r} is not allowed; {allowed}")


def test_pin_of_a_model_stage_that_is_not_there_is_refused(make_data: Any) -> None:
    with pytest.raises(JobFileError, match=r"^policy\.pins\[0\]: 'actor_trainin' .* did you mean actor_training\?"):
        parse_job(make_data(("policy", {"pins": ["actor_trainin"]})))


def test_job_file_with_a_script_and_a_policy_that_adapts_is_refused(make_data: Any) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_job(make_data(("policy", {"adapt": True})))
    assert str(caught.value).startswith("policy.adapt: True is not allowed; with scripted transitions it must be false")


def test_job_file_with_a_trace_and_a_fixed_plan_is_refused(make_data: Any) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_job(make_data(("availability", "pool.csv"), ("transitions", [])))
    assert str(caught.value).startswith("availability: 'pool.csv' is not allowed; it needs policy.adapt true")


def test_job_that_follows_a_trace_starts_with_the_devices_of_its_first_row(write: Any, tmp_path: Path) -> None:
    job = load_job(write())
    trace = availability_of(job)
    assert job.availability == str(tmp_path / "pool.csv")
    assert job.absent == (6, 7)
    assert trace is not None
    assert trace.by_steps(3) == (6, 8, 4, 4)


def test_job_that_follows_a_trace_can_be_parsed_again_from_its_own_data(write: Any) -> None:
    job = load_job(write())
    assert parse_job(job.model_dump(mode="json")) == job


def test_trace_of_a_job_is_scaled_to_its_cluster(write: Any) -> None:
    job = load_job(write("0,24 60,32"))
    trace = availability_of(job)
    assert trace is not None
    assert trace.points == ((0, 6), (60, 8))


def test_trace_given_later_takes_the_place_of_the_declared_one(write: Any, tmp_path: Path) -> None:
    job = load_job(write())
    other = tmp_path / "other.csv"
    other.write_text("time_s,available_gpus\n0,8\n60,7\n", encoding="utf-8")
    followed = with_availability(job, other)
    assert (followed.availability, followed.absent) == (str(other), ())


def test_trace_given_later_to_a_job_that_does_not_adapt_is_refused(make_data: Any, write: Any, tmp_path: Path) -> None:
    write()
    fixed: Job = parse_job(make_data(("transitions", [])))
    with pytest.raises(JobFileError, match="it needs policy"):
        with_availability(fixed, tmp_path / "pool.csv")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "pool.csv: there is no such file"),
        ("0,6 60,x", "pool.csv, line 3, available_gpus: 'x' is not allowed; it must be a whole number"),
        ("0,0", "available_gpus: it is 0 in every row"),
    ],
)
def test_job_file_with_a_trace_that_does_not_read_is_refused(write: Any, rows: str | None, said: str) -> None:
    text = refusal(write(rows))
    assert text.startswith("availability: 'pool.csv' is not allowed; it must be a trace of the pool: ")
    assert said in text


def test_job_file_whose_plan_needs_devices_that_come_later_is_refused(write: Any) -> None:
    said = "plan.reference_inference.devices: '4-5' is not allowed; absent at the start; the devices that are there: 0-3"
    assert refusal(write("0,4 60,8")) == said


def test_job_file_whose_absent_devices_contradict_the_trace_is_refused(write: Any) -> None:
    text = refusal(write("0,6 60,8", ("absent", [7])))
    assert text.startswith("absent: '7' is not allowed; with availability it must be left out")
    assert text.endswith("are 6-7")
    assert load_job(write("0,6 60,8", ("absent", [7, 6]))).absent == (6, 7)
