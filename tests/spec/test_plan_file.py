"""Plan files: what is read, in which shapes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nereus.errors import JobFileError
from nereus.spec.cluster import Cluster
from nereus.spec.plan import StageChoice
from nereus.spec.plan_file import Admitted, PlannedStage, parse_plan, read_plan, read_plans
from tests.builders import make_model

DECODER = make_model(num_heads=8, num_kv_heads=2, num_layers=6, tied=False).decoder
ANY = Admitted(DECODER, None, None)
CLUSTER = Cluster.model_validate({"nodes": 2, "devices_per_node": 4, "device": {"memory": "64MiB"}})
OF_A_JOB = Admitted(DECODER, CLUSTER, ("actor_generation", "reference_inference", "actor_training"))
TRAINING = {"actor_training": {"tp": 2, "dp": 3}}


def message(data: object, admitted: Admitted = ANY) -> str:
    with pytest.raises(JobFileError) as caught:
        parse_plan(data, "a.json", admitted)
    return str(caught.value)


def write(folder: Path, name: str, data: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(data) if name.endswith(".json") else yaml.safe_dump(data), encoding="utf-8")
    return path


def test_plan_says_how_state_is_sharded_in_every_form() -> None:
    choice = {"tp": 2, "pp": 3, "dp": 2, "fsdp": 2, "zero1": True, "devices": "24-47", "micro_batch": 4}
    (stage,) = parse_plan({"critic_training": choice}, "a.json", ANY).values()
    assert stage == PlannedStage(tp=2, pp=3, dp=2, fsdp=2, zero1=True, devices=tuple(range(24, 48)), micro_batch=4)


def test_stage_without_devices_gets_the_first_ones_fsdp_ranks_included() -> None:
    assert PlannedStage(tp=2, fsdp=3, dp=2).devices == tuple(range(12))


def test_job_file_has_no_sharding_that_the_native_job_does_not_run() -> None:
    assert set(PlannedStage.model_fields) - set(StageChoice.model_fields) == {"fsdp", "zero1"}


SHAPES = {
    "a summary": {"steps": 8, "final_plan": TRAINING},
    "the API": {"epoch": 3, "since_step": 7, "stages": TRAINING},
    "nereus status": {"ready": True, "plan": {"epoch": 3, "since_step": 7, "stages": TRAINING}, "devices": []},
    "a job file": {"name": "job", "plan": TRAINING},
    "nereus plan": {"job": "job", "plans": [{"devices": 8, "l_step_seconds": 1.5, "stages": TRAINING}]},
    "an entry of nereus plan": {
        "devices": 8,
        "stages": {"actor_training": {"tp": 2, "dp": 3, "seconds": 0.5, "state_bytes": 9, "live_bytes": 7}},
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_plan_is_taken_as_nereus_prints_it(shape: str) -> None:
    assert parse_plan(SHAPES[shape], "a.json", ANY) == {"actor_training": PlannedStage(tp=2, dp=3)}


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_plan_is_read_from_json_and_from_yaml(name: str, tmp_path: Path) -> None:
    assert read_plan(write(tmp_path, name, TRAINING), ANY) == {"actor_training": PlannedStage(tp=2, dp=3)}


WRONG = [
    ({"tp": 3}, "actor_training.tp: 3", "it must divide the 8 query heads: 1, 2, 4 or 8"),
    ({"pp": 7}, "actor_training.pp: 7", "it must be at most the 6 layers"),
    ({"tp": 0}, "actor_training.tp: 0", "it must be at least 1"),
    ({"tp": "2"}, "actor_training.tp: '2'", "it must be a whole number"),
    ({"zero1": 1}, "actor_training.zero1: 1", "it must be true or false"),
    ({"ep": 2}, "actor_training.ep: 2", "plan files have no ep yet"),
    ({"offload": "optimizer"}, "actor_training.offload: 'optimizer'", "plan files have no offload yet"),
    ({"micro_bach": 2}, "actor_training.micro_bach: 2", "did you mean micro_batch?"),
    ({"dp": 2, "devices": "0-2"}, "actor_training.devices: '0-2'", "tp 1 x pp 1 x dp 2 takes 2 devices, 3 are named"),
    ({"fsdp": 2, "devices": [0]}, "actor_training.devices: '0'", "pp 1 x dp 1 x fsdp 2 takes 2 devices, 1 is named"),
    ({"dp": 2, "devices": [1, 1]}, "actor_training.devices: '1,1'", "a device can be named once only"),
    ({"devices": [-1]}, "actor_training.devices[0]: -1", "it must be at least 0"),
    (
        "tp2",
        "actor_training: 'tp2'",
        "it must be a mapping with the fields tp, pp, dp, fsdp, zero1, devices, micro_batch",
    ),
]


@pytest.mark.parametrize(("choice", "seen", "allowed"), WRONG)
def test_plan_with_a_wrong_field_is_refused(choice: Any, seen: str, allowed: str) -> None:
    text = message({"actor_training": choice})
    assert text.startswith(f"a.json: {seen} is not allowed; ")
    assert allowed in text


def test_plan_beyond_the_cluster_of_a_job_is_refused() -> None:
    assert "takes 16 devices, and the cluster has 8 (2 nodes x 4)" in message({"actor_training": {"dp": 16}}, OF_A_JOB)
    seen = message({"actor_training": {"dp": 2, "devices": "7-8"}}, OF_A_JOB)
    assert seen == "a.json: actor_training.devices: '8' is not allowed; the cluster has 8 (2 nodes x 4), numbered 0-7"


@pytest.mark.parametrize(
    ("stage", "admitted", "allowed"),
    [
        ("actor_trainng", OF_A_JOB, "there is no such model-stage, did you mean actor_training?"),
        ("critic_training", OF_A_JOB, "there is no such model-stage"),
        ("actor_trainng", ANY, "the name must end in _generation, _inference or _training"),
        ("training", ANY, "the name must end in _generation, _inference or _training"),
        (3, ANY, "the name must end in _generation, _inference or _training"),
    ],
)
def test_plan_of_an_unknown_model_stage_is_refused(stage: Any, admitted: Admitted, allowed: str) -> None:
    text = message({stage: {}}, admitted)
    assert text.startswith(f"a.json: {stage}: {{}} is not allowed; ")
    assert allowed in text


@pytest.mark.parametrize("data", [None, {}, [], 3, {"plan": None}, {"plan": 3}, {"stages": {}}])
def test_file_without_a_plan_is_refused(data: object) -> None:
    assert "is not allowed; it must be a mapping of model-stages" in message(data)


def test_file_with_several_plans_is_refused() -> None:
    text = message({"job": "job", "plans": [{"stages": TRAINING}] * 4})
    assert text.startswith("a.json: plans: '4 plans' is not allowed; one plan is needed; keep one entry")


def test_file_with_several_problems_gives_one_message_that_counts_them() -> None:
    text = message({"actor_training": {"tp": 3, "pp": 9}, "critic_training": {"tp": 5}})
    assert text.startswith("a.json: actor_training.tp: 3")
    assert "(and 2 more problems: a.json: actor_training.pp, a.json: critic_training.tp)" in text


@pytest.mark.parametrize("swapped", [False, True])
def test_model_stage_of_one_file_only_is_refused_by_name(swapped: bool, tmp_path: Path) -> None:
    fuller = write(tmp_path, "full.json", {**TRAINING, "critic_training": {}})
    barer = write(tmp_path, "bare.json", TRAINING)
    with pytest.raises(JobFileError, match=r"bare\.json: critic_training: None is not allowed; .*full\.json has it"):
        read_plans(*((fuller, barer) if swapped else (barer, fuller)), ANY)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", '{"actor_training": {"tp": 2}', r"a\.json, line 1: .*it must be JSON: "),
        ("a.json", '{"actor_training": {"tp": 2, "tp": 4}}', r"it must be JSON: tp is given twice"),
        ("a.json", "[" * 100_000, r"it must be JSON: "),
        ("a.yaml", "actor_training: [1", r"a\.yaml, line 1: .*it must be YAML: "),
        ("a.yaml", "&a {plan: *a}", r"a model-stage is a model and its role"),
    ],
)
def test_file_that_cannot_be_parsed_is_refused_with_its_place(name: str, text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JobFileError, match=expected):
        read_plan(path, ANY)


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"plan file: .*nowhere\.json' is not allowed; there is no such file"):
        read_plan(tmp_path / "nowhere.json", ANY)
