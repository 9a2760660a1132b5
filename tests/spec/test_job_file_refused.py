"""Every wrong job file ends in one JobFileError that names the field, the value and what is allowed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nereus.errors import JobFileError
from nereus.spec.loading import load_job, parse_job


def message(data: object) -> str:
    with pytest.raises(JobFileError) as caught:
        parse_job(data)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def test_job_file_with_a_tp_that_does_not_divide_the_heads_is_refused(make_data: Any) -> None:
    expected = "plan.actor_training.tp: 3 is not allowed; it must divide the 4 query heads: 1, 2 or 4"
    assert message(make_data(("plan.actor_training", {"tp": 3, "devices": "0-2"}))) == expected


WRONG_FIELDS = [
    ("workload.prompts_per_stp", 16, "no such field, did you mean prompts_per_step?"),
    ("cluster.device.sped", 0.1, "did you mean speed? it must be kind, speed or memory"),
    ("transitions[1].lave", [1], "did you mean leave?"),
    ("cluster.device", 8, "it must be a mapping with the fields kind, speed, memory"),
    ("plan", "tp2", "it must be a mapping of model-stages: actor_generation, reference_inference, actor_training"),
    ("plan.actor_training", "tp2", "it must be a mapping with the fields tp, pp, dp, devices, micro_batch"),
    ("zzz", 1, "no such field; it must be name, seed,"),
    ("steps", "many", "it must be a whole number"),
    ("steps", True, "it must be a whole number"),
    ("steps", 0, "it must be at least 1"),
    ("seed", -1, "it must be at least 0"),
    ("name", "", "it must not be empty"),
    ("dtype", "bfloat16", "it must be 'float32' or 'float64'"),
    ("model", 3, "it must be a mapping with the fields hidden_size, num_layers,"),
    ("model.num_heads", "4", "it must be a whole number"),
    ("model.num_kv_heads", 3, "it must divide num_heads, which is 4"),
    ("model.head_dim", 7, "multiple of 2"),
    ("model.tie_embeddings", "yes", "it must be true or false"),
    ("model.vocab_size", 31, "letter_class has exactly 64 tokens"),
    ("task.name", "gsm8k", "it must be 'letter_class' or 'chain_sum'"),
    ("task.num_prompts", 3, "it must be at least prompts_per_step, which is 4"),
    ("workload.response_cap", [], "the list must have 1 or more entries"),
    ("workload.response_cap", 20, "it must be a list"),
    ("workload.response_cap[0].tokens", 0, "it must be at least 1"),
    ("workload.response_cap[1].step", 1, "it must be above the one before, 1"),
    ("workload.temperature", 0, "it must be above 0"),
    ("optimizer.learning_rate", "3e-3", "it must be a finite number"),
    ("optimizer.learning_rate", float("nan"), "it must be a finite number"),
    ("optimizer.betas", [0.9], "betas"),
    ("optimizer.betas", [0.9, 0.95, 0.99], "the list must have 2 entries"),
    ("cluster.device.kind", "tpu", "it must be 'cpu' or 'gpu'"),
    ("cluster.device.speed", 1.5, "it must be at most 1"),
    ("cluster.device.memory", "64 parsecs", "a size such as 64MiB"),
    ("cluster.device.memory", 0, "it must be at least 1"),
    ("cluster.links", {"wire_bytes_s": 0}, "wire_bytes_s: 0 is not allowed; it must be above 0"),
    ("cluster.links", {"wire_bytes": 1e9}, "no such field, did you mean wire_bytes_s?"),
    ("cluster.nodes", 10**30, "it must be at most 1024"),
    ("grpo", {"updates_per_step": 5}, "5 is not allowed; it must divide the global batch of 24 (4 prompts x 6 samples)"),
    ("rollouts", {"source": "recorded"}, "source recorded needs the path"),
    ("rollouts", {"path": "x"}, "only source recorded reads a path"),
    ("absent", [8], "the devices of the cluster are 0-7"),
    ("absent", [6, 6, 7], "a device can be named once only"),
]


@pytest.mark.parametrize(("path", "value", "allowed"), WRONG_FIELDS)
def test_job_file_with_a_wrong_field_is_refused(make_data: Any, path: str, value: object, allowed: str) -> None:
    text = message(make_data((path, value)))
    assert text.startswith(path), text
    assert allowed in text
    if not isinstance(value, list | dict):
        assert repr(value) in text


WRONG_PLANS = [
    ("actor_training.tp", {"tp": 0}, "0 is not allowed; it must be at least 1"),
    ("actor_training.pp", {"pp": 5, "devices": "0-4"}, "5 is not allowed; it must be at most the 4 layers"),
    ("actor_generation.pp", {"pp": 2}, "2 is not allowed; it must be 1: generation has no pipeline"),
    (
        "actor_training.dp",
        {"dp": 5},
        "5 is not allowed; it must divide the global batch of 24 (4 prompts x 6 samples): 1, 2, 3",
    ),
    (
        "actor_training.micro_batch",
        {"dp": 2, "micro_batch": 13},
        "13 is not allowed; it must be at most 12, the share of one of 2 EMUs",
    ),
    ("actor_training.micro_batch", {"micro_batch": 0}, "it must be at least 1"),
    (
        "actor_training.devices",
        {"tp": 4, "pp": 2, "dp": 2},
        "16 is not allowed; tp 4 x pp 2 x dp 2 takes 16 devices, and the",
    ),
    (
        "actor_training.devices",
        {"tp": 4, "dp": 24},
        "96 is not allowed; tp 4 x pp 1 x dp 24 takes 96 devices, and the cluster has 8 (2 nodes x 4)",
    ),
    (
        "actor_training.devices",
        {"dp": 2, "devices": "7-8"},
        "'8' is not allowed; the cluster has 8 (2 nodes x 4), numbered 0-7",
    ),
    (
        "actor_training.devices",
        {"dp": 2, "devices": "0-2"},
        "'0-2' is not allowed; tp 1 x pp 1 x dp 2 takes 2 devices, 3 are",
    ),
    ("actor_training.devices", {"dp": 2, "devices": [1, 1]}, "'1,1' is not allowed; a device can be named once only"),
    ("actor_training.devices", {"dp": 2, "devices": []}, "the list must have 1 or more entries"),
    (
        "actor_training.devices",
        {"dp": 2, "devices": "0 to 1"},
        "'0 to 1' is not allowed; it must be a list of device numbers",
    ),
    ("actor_training.devices", {"dp": 2, "devices": "3-2"}, "the span 3-2 must rise"),
    ("actor_training.devices[0]", {"devices": [-1]}, "-1 is not allowed; it must be at least 0"),
    ("actor_training.devices", {"devices": [6]}, "'6' is not allowed; absent at the start; the devices that are there: 0-5"),
    ("actor_trainning", {}, "there is no such model-stage, did you mean actor_training?"),
]


@pytest.mark.parametrize(("field", "choice", "allowed"), WRONG_PLANS)
def test_job_file_with_a_wrong_plan_is_refused(make_data: Any, field: str, choice: object, allowed: str) -> None:
    text = message(make_data((f"plan.{field.split('.')[0]}", choice), ("transitions", [])))
    assert text.startswith(f"plan.{field}: "), text
    assert allowed in text


def test_job_file_whose_updates_cannot_be_shared_by_the_training_emus_is_refused(make_data: Any) -> None:
    text = message(make_data(("grpo", {"updates_per_step": 8}), ("plan.actor_training", {"dp": 2}), ("transitions", [])))
    seen = "plan.actor_training.dp: 2 is not allowed; it must divide the 3 sequences of one update"
    assert text == f"{seen} (4 prompts x 6 samples, 8 updates): 1 or 3"


def test_job_file_with_a_tp_that_cuts_through_key_value_heads_is_refused(make_data: Any) -> None:
    shape = make_data()["model"] | {"num_heads": 12, "num_kv_heads": 4}
    text = message(make_data(("model", shape), ("plan.actor_training", {"tp": 6, "devices": "0-5"})))
    rule = "it must divide the 4 key-value heads or be a multiple of them: 1, 2 or 4"
    assert text.startswith(f"plan.actor_training.tp: 6 is not allowed; {rule}")


def test_job_file_without_a_model_stage_is_refused(make_data: Any, missing: str) -> None:
    text = message(make_data(("plan.actor_training", missing), ("transitions", [])))
    assert text.startswith("plan.actor_training: None is not allowed; the model-stage is required")


@pytest.mark.parametrize("path", ["name", "model", "workload.samples_per_prompt", "cluster.device.memory"])
def test_job_file_without_a_required_field_is_refused(make_data: Any, missing: str, path: str) -> None:
    assert message(make_data((path, missing))).startswith(f"{path}: None is not allowed; the field is required")


def test_job_file_with_a_misspelt_required_field_names_the_misspelling_first(make_data: Any, missing: str) -> None:
    text = message(make_data(("workload.samples_per_prompt", missing), ("workload.samples_per_promt", 6)))
    assert text.startswith("workload.samples_per_promt: 6 is not allowed; ")
    assert text.endswith("(and 1 more problem: workload.samples_per_prompt)")


def test_job_file_with_several_problems_gives_one_message_that_counts_them(make_data: Any) -> None:
    edits = (("plan.actor_training.tp", 4), ("plan.actor_generation.pp", 2), ("model.vocab_size", 8))
    text = message(make_data(*edits))
    assert text.startswith("model.vocab_size: 8 is not allowed")
    assert "(and 5 more problems: plan.actor_generation.pp," in text


def test_job_file_of_smollm2_is_refused_with_another_shape_or_a_character_task(make_data: Any, missing: str) -> None:
    assert message(make_data(("weights", "smollm2"), ("task.name", "chain_sum"))).startswith("model: ")
    text = message(make_data(("weights", "smollm2"), ("model", missing), ("plan.actor_training.tp", 1)))
    assert text.startswith("task.name: 'letter_class' is not allowed; with weights smollm2 it must be chain_sum")


@pytest.mark.parametrize("path", ["steps", "model.num_layers", "optimizer.learning_rate"])
def test_job_file_with_a_number_of_thousands_of_digits_is_refused(make_data: Any, path: str) -> None:
    text = message(make_data((path, int("f" * 9000, 16))))  # YAML reads hexadecimal numbers of any length
    assert text.startswith(f"{path}: 'int too long to show' is not allowed; it must be ")


def test_job_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"nothing\.yaml' is not allowed; there is no such file"):
        load_job(tmp_path / "nothing.yaml")
    with pytest.raises(JobFileError, match="readable file"):
        load_job(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nsteps: [1\n", r"line 3: .* it must be YAML: expected"),
        ("name: a\n\tsteps: 1\n", r"line 2: .*steps: 1.* it must be YAML: "),
        ("name: a\nsteps: 1\nname: b\n", r"line 3: 'name: b' .* name is given twice, first in line 1"),
        ("{name: a, name: b}\n", r"line 1: .* name is given twice, first in line 1"),
        ("when: 2001-99-99\n", r"it must be YAML: month"),
        ("name: \x00", r"it must be YAML"),
        ("", r"job: None is not allowed; it must be a mapping with the fields name"),
        ("- 1\n- 2\n", r"job: \[1, 2\] is not allowed; it must be a mapping"),
        ("3: 4\n", r"^3: 3 is not allowed; there is no such field"),
        ("[" * 5000, r"it must be YAML: "),
        ("&a [*a]", r"job: "),
        ("name: !!python/name:os.system x", r"line 1: "),
    ],
)
def test_job_file_that_is_no_yaml_mapping_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JobFileError, match=expected):
        load_job(path)


def test_job_file_whose_recorded_rollouts_do_not_exist_is_refused(make_data: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(make_data(("rollouts", {"source": "recorded", "path": "gone.jsonl"}))), encoding="utf-8")
    with pytest.raises(JobFileError, match=r"rollouts\.path: 'gone\.jsonl' is not allowed; it must exist"):
        load_job(path)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in plain data."""
    pairs = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    return [(data, key) for key, _ in pairs] + [place for _, value in pairs for place in places(value)]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 20)
    | st.integers()
    | st.floats()
    | st.sampled_from(["0-3", "1-999999999", "64MiB", "smollm2", "recorded", "gpu", "chain_sum", "actor_training", "a/b"])
    | st.text(max_size=8)
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3))


@given(draw=st.data())
def test_job_file_with_random_mutations_loads_or_is_refused_and_nothing_else(make_data: Any, draw: st.DataObject) -> None:
    data = copy.deepcopy(make_data())
    for _ in range(draw.draw(st.integers(1, 3))):
        container, key = draw.draw(st.sampled_from(places(data)))
        match draw.draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                container[key] = draw.draw(values)
            case "remove":
                del container[key]
            case _ if isinstance(container, dict):
                container[draw.draw(scalars)] = draw.draw(values)
            case _:
                container.append(draw.draw(values))
        if not places(data):
            break
    try:
        parse_job(data)
    except JobFileError as error:
        refusal = str(error)
    else:
        return
    assert " is not allowed; " in refusal
    assert len(refusal) < 2000
