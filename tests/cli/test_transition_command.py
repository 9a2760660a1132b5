"""`nereus transition` as a person meets it: a process of its own, its exit code, its two streams, and its document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nereus.spec.families import FAMILIES, WRAPPERS
from nereus.spec.plan_file import PlannedStage
from nereus.transition.summary import Feasible, Link
from tests.cli.test_run_command import QUICKSTART, ROOT, RUN_MAIN, assert_one_message, nereus_command, python

SMALL_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 499,
    "torch_dtype": "bfloat16",
}
PARAMETERS = 499 * 64 * 2 + 64 + 4 * (64 * 128 * 2 + 64 * 32 * 2 + 3 * 64 * 96 + 2 * 64 + 2 * 16)
TP4 = {"actor_training": {"tp": 4, "dp": 2}, "actor_generation": {"dp": 4}}
TP2 = {"actor_training": {"tp": 2, "dp": 4}, "actor_generation": {"dp": 4}}


def write(folder: Path, name: str, data: object) -> str:
    path = folder / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def files(folder: Path, before: Any = TP4, after: Any = TP2, model: Any = SMALL_MODEL) -> list[str]:
    """The arguments for a model and two plans."""
    job = write(folder, "config.json", model)
    return ["transition", job, "--from", write(folder, "a.json", before), "--to", write(folder, "b.json", after)]


def printed(arguments: list[str]) -> dict[str, Any]:
    ended = nereus_command(*arguments, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_transition_of_a_published_model_is_one_json_object(tmp_path: Path) -> None:
    found = printed(files(tmp_path))
    assert found["job"] == str(tmp_path / "config.json")
    assert found["model"] == {"family": "qwen3", "num_parameters": PARAMETERS, "dtype": "bfloat16"}
    assert [op["primitives"] for op in found["ops"]] == [["Split"], ["Split"]]
    # Both replicas: each of 4 ranks gets a quarter of what is cut (all but the norms), 2 + 3 * 4 bytes of each parameter.
    cut = PARAMETERS - 64 - 4 * (2 * 64 + 2 * 16)
    kv_repeated = 4 * 2 * 64 * 32  # 2 key-value heads: each of 4 ranks has one whole, before and after
    assert found["bytes"]["node"] == found["bytes"]["lower_bound"] == 2 * 14 * (cut - kv_repeated)
    assert found["bytes"]["network"] == 0
    assert {move["link"] for move in found["moves"]} == {"local", "node"}
    assert sum(m["bytes"] for m in found["moves"] if m["from"] != m["to"]) == found["bytes"]["node"]
    assert set(found["peak_bytes"]) == {str(device) for device in range(8)}
    assert found["feasible"]["code"] == "feasible"
    assert found["l_tran_s"] > 0
    assert all(len(members) == 2 for members in found["communicators"])


def test_devices_per_node_decides_what_crosses_between_nodes(tmp_path: Path) -> None:
    found = printed([*files(tmp_path, {"actor_training": {}}, {"actor_training": {"dp": 2}}), "--devices-per-node", "1"])
    assert found["bytes"]["network"] > found["bytes"]["node"] == 0


def test_memory_and_bucket_decide_whether_it_streams_and_whether_it_fits(tmp_path: Path) -> None:
    arguments = files(tmp_path)
    peak = max(printed([*arguments, "--bucket", "1MiB"])["peak_bytes"].values())
    codes = [
        printed([*arguments, "--bucket", "1MiB", "--memory", str(size)])["feasible"]["code"] for size in (peak, peak // 4)
    ]
    assert codes == ["feasible", "infeasible_memory"]


def test_job_file_brings_its_model_its_cluster_and_its_plan(tmp_path: Path) -> None:
    after = {
        "actor_generation": {"dp": 8},
        "reference_inference": {"tp": 2, "dp": 2},
        "actor_training": {"dp": 8, "devices": "7,6,5,4,3,2,1,0"},
    }
    after_path = write(tmp_path, "b.json", after)
    arguments = ["transition", str(QUICKSTART), "--from", str(QUICKSTART), "--to", after_path]
    found = printed(arguments)
    assert found["job"] == "quickstart"
    assert {name: stage["changes"] for name, stage in found["stages"].items()} == {
        "actor_generation": True,
        "reference_inference": False,
        "actor_training": True,
    }
    assert found["bytes"]["network"] > 0 == found["bytes"]["node"]
    assert found["stages"]["actor_training"]["after"]["devices"] != [7, 6, 5, 4, 3, 2, 1, 0]
    kept = printed([*arguments, "--keep-order"])
    assert kept["stages"]["actor_training"]["after"]["devices"] == [7, 6, 5, 4, 3, 2, 1, 0]


def test_transition_without_json_is_for_a_person(tmp_path: Path) -> None:
    ended = nereus_command(*files(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    shown = ("tp4 pp1 dp2 on 0-7", "tp2 pp1 dp4 on 0-7", "1 Split", "the least that can be sent", "L_tran", "feasible")
    assert [part for part in shown if part not in ended.stdout] == []


def test_plan_that_stays_is_printed_as_one(tmp_path: Path) -> None:
    ended = nereus_command(*files(tmp_path, TP4, TP4))
    assert ended.returncode == 0
    assert "no state moves" in ended.stdout


WRONG = {
    "a model that is not known": (
        {"model": SMALL_MODEL | {"model_type": "rwkv5"}},
        ["model_type", "'rwkv5'", "supported are"],
    ),
    "a model that can be planned only": (
        {"model": SMALL_MODEL | {"model_type": "qwen3_vl_text", "architectures": None}},
        ["config.json: model_type: 'qwen3_vl_text'", "planned and not moved"],
    ),
    "a quantised model": (
        {"model": SMALL_MODEL | {"quantization_config": {"quant_method": "fp8"}}},
        ["quantization_config.quant_method: 'fp8'", "quantised tensors are not moved"],
    ),
    "a config without its type": ({"model": {"hidden_size": 64}}, ["model_type", "None", "supported are llama"]),
    "a model-stage of one file only": ({"after": {"actor_training": {}}}, ["b.json", "actor_generation", "a.json has it"]),
    "a tp that does not divide the heads": (
        {"after": TP2 | {"actor_training": {"tp": 3}}},
        ["b.json: actor_training.tp", "3", "it must divide the 8 query heads: 1, 2, 4 or 8"],
    ),
    "a plan that is none": ({"before": [1]}, ["a.json", "[1]", "it must be a mapping of model-stages"]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_file_with_a_mistake_ends_with_one_message_and_exit_code_2(wrong: str, tmp_path: Path) -> None:
    changed, expected = WRONG[wrong]
    assert_one_message(nereus_command(*files(tmp_path, **changed)), expected)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--memory", "80 parsecs", "a size such as 64MiB"),
        ("--memory", "0", "it must be at least 1"),
        ("--bucket", "1KiB", "it must be at least 1048576"),
    ],
)
def test_option_that_is_no_size_ends_with_one_message_and_exit_code_2(
    option: str, value: str, expected: str, tmp_path: Path
) -> None:
    assert_one_message(nereus_command(*files(tmp_path), option, value), [option, repr(value), "is not allowed", expected])


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_missing_file_ends_with_one_message_and_exit_code_2(missing: int, tmp_path: Path) -> None:
    arguments = files(tmp_path)
    arguments[missing] = str(tmp_path / "nowhere.json")
    assert_one_message(nereus_command(*arguments), ["nowhere.json", "there is no such file"])


@pytest.mark.parametrize("job", ["config.json", str(QUICKSTART)])
def test_neither_ray_nor_torch_is_loaded(job: str, tmp_path: Path) -> None:
    arguments = files(tmp_path, TP4, TP2)
    if job != "config.json":
        arguments = ["transition", job, "--from", job, "--to", job]
    ended = python("-c", RUN_MAIN.format(arguments=json.dumps(arguments)))
    assert ended.returncode == 0
    assert not {"ray", "torch"} & set(json.loads(ended.stderr.splitlines()[-1]))


def document() -> str:
    """The section of the command in docs/cli.md."""
    _, _, rest = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("\n## nereus transition\n")
    return rest.partition("\n## ")[0]


def rows() -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", document(), re.MULTILINE))


def test_document_has_a_row_for_every_field_of_a_plan_file() -> None:
    assert set(PlannedStage.model_fields) <= rows()


def test_document_has_every_key_that_is_printed(tmp_path: Path) -> None:
    found = printed(files(tmp_path))
    assert set(found) <= rows()
    inner = {*found["model"], *found["ops"][0], *found["moves"][0], *found["bytes"], *found["feasible"]}
    inner |= set(next(iter(found["stages"].values())))
    assert [key for key in inner if f"`{key}`" not in document()] == []


def test_document_names_every_family_link_mode_and_verdict() -> None:
    words = [*FAMILIES, *WRAPPERS, *map(str, Link), *map(str, Feasible), "at_once", "streamed"]
    assert [word for word in words if f"`{word}`" not in document()] == []
