"""What a job file without mistakes turns into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nereus.errors import JobFileError
from nereus.spec.cluster import CpuDevice, GpuDevice
from nereus.spec.loading import check_cores, load_job, parse_job
from nereus.spec.model import SMOLLM2
from nereus.spec.stages import STAGES

EXAMPLES = Path(__file__).parents[2] / "examples"


def write(folder: Path, data: object) -> Path:
    path = folder / "job.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "scripted"), [("quickstart", False), ("smollm2-grpo", True), ("smollm2-adaptive", False)])
def test_examples_load_and_fit_two_cores(name: str, scripted: bool) -> None:
    job = load_job(EXAMPLES / f"{name}.yaml")
    assert job.name == name
    assert set(job.plan) == set(STAGES)
    assert (bool(job.transitions), job.policy.adapt) == (scripted, not scripted)
    check_cores(job, 2)


def test_quickstart_is_as_large_as_the_issue_asks() -> None:
    job = load_job(EXAMPLES / "quickstart.yaml")
    assert 300_000 <= job.model.num_parameters <= 1_000_000
    assert job.workload.prompts_per_step >= 16
    assert job.workload.samples_per_prompt >= 16
    assert job.cluster.num_devices == 8


def test_job_file_of_smollm2_may_omit_the_model_and_gets_the_published_shape() -> None:
    job = load_job(EXAMPLES / "smollm2-grpo.yaml")
    assert job.model == SMOLLM2
    assert job.model.num_parameters == 134_515_008  # as its model card counts


def test_job_file_is_the_same_job_from_yaml_and_from_data(make_data: Any, tmp_path: Path) -> None:
    assert load_job(write(tmp_path, make_data())) == parse_job(make_data())


def test_job_has_the_documented_defaults(make_data: Any) -> None:
    job = parse_job(make_data())
    assert (job.seed, job.dtype, job.weights) == (0, "float32", "random")
    assert (job.optimizer.betas, job.optimizer.eps, job.optimizer.max_grad_norm) == ((0.9, 0.95), 1e-8, 1.0)
    assert job.rollouts.source == "live"
    assert job.global_batch == 24
    assert job.cluster.device == CpuDevice(speed=0.15, memory=64 * 2**20)


def test_stage_without_devices_gets_the_first_ones(make_data: Any) -> None:
    plan = parse_job(make_data()).plan
    assert plan["actor_generation"].devices == (0, 1, 2, 3)
    assert plan["reference_inference"].devices == (4, 5)


def test_gpu_device_needs_no_memory_and_no_cores(make_data: Any) -> None:
    job = parse_job(make_data(("cluster.device", {"kind": "gpu"})))
    assert job.cluster.device == GpuDevice(kind="gpu")
    check_cores(job, 1)


def test_cluster_numbers_devices_in_node_order(make_data: Any) -> None:
    cluster = parse_job(make_data()).cluster
    assert [cluster.node_of(device) for device in range(cluster.num_devices)] == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("step", "tokens"), [(0, 6), (1, 6), (2, 6), (3, 7), (4, 7), (5, 8), (10, 10), (11, 11), (12, 11), (99, 11)]
)
def test_response_cap_is_linear_between_corners_and_constant_outside(make_data: Any, step: int, tokens: int) -> None:
    assert parse_job(make_data()).workload.cap_at(step) == tokens


def test_response_cap_of_one_corner_is_constant(make_data: Any) -> None:
    workload = parse_job(make_data(("workload.response_cap", [{"step": 5, "tokens": 9}]))).workload
    assert {workload.cap_at(step) for step in range(20)} == {9}
    assert workload.max_response_tokens == 9


def test_job_over_fewer_steps_drops_the_transitions_after_its_end(make_data: Any) -> None:
    job = parse_job(make_data())
    assert [t.step for t in job.with_steps(8).transitions] == [4]
    assert [t.step for t in job.with_steps(100).transitions] == [4, 8]


def test_paths_of_rollouts_count_from_the_job_file(make_data: Any, tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").touch()
    rollouts = {"source": "recorded", "path": "rollouts.jsonl", "record": "again.jsonl"}
    job = load_job(write(tmp_path, make_data(("rollouts", rollouts))))
    assert job.rollouts.path == str(tmp_path / "rollouts.jsonl")
    assert job.rollouts.record == str(tmp_path / "again.jsonl")


def test_numbers_with_an_exponent_and_no_point_are_numbers(make_data: Any, tmp_path: Path) -> None:
    text = yaml.safe_dump(make_data()).replace("0.003", "3e-3")
    assert load_job(write(tmp_path, text)).optimizer.learning_rate == 0.003


def test_devices_may_have_four_fifths_of_the_cores_and_not_more(make_data: Any) -> None:
    check_cores(parse_job(make_data(("cluster.device.speed", 0.2))), 2)
    with pytest.raises(JobFileError) as caught:
        check_cores(parse_job(make_data(("cluster.device.speed", 0.25))), 2)
    assert str(caught.value).startswith("cluster.device.speed: 0.25 is not allowed")
    assert "at most 0.2;" in str(caught.value)


def test_unpaced_devices_take_what_they_get(make_data: Any) -> None:
    check_cores(parse_job(make_data(("cluster.device.speed", None))), 1)
