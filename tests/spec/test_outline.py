"""Outlines: what they declare, and how a wrong one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.spec.outline import is_outline, parse_outline, read_models
from nereus.spec.workflow import Algorithm

OUTLINE: dict[str, Any] = {
    "name": "o",
    "algorithm": "ppo",
    "models": {"actor": "a.json"},
    "workload": {"prompts_per_step": 64, "samples_per_prompt": 4, "prompt_tokens": 100, "response_tokens": 500},
    "nodes": [{"kind": "H100", "count": 2}, {"kind": "A100-80GB", "devices": 4, "memory": "40GiB"}],
}


def test_outline_says_what_a_plan_depends_on() -> None:
    outline = parse_outline(OUTLINE)
    assert (outline.num_devices, outline.workload.global_batch, outline.workload.longest_tokens) == (20, 256, 1000)
    assert [group.memory_bytes for group in outline.nodes] == [80 * 2**30, 40 * 2**30]
    assert outline.workflow.algorithm is Algorithm.PPO


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "dpo"}, "algorithm"),
        ({"nodes": [{"kind": "H900"}]}, r"^nodes\[0\]\.kind: 'H900' is not allowed; .*did you mean.*MI300X or L40S$"),
        ({"nodes": [{"kind": "H100", "count": 0}]}, r"^nodes\[0\]\.count: 0 is not allowed; it must be at least 1$"),
        ({"a\nb": 1}, r"^'a\\nb': 1 is not allowed; there is no such field"),
        ({"nodes": []}, "nodes"),
        ({"gpus": 8}, "gpus.*no such field"),
        ({"headroom": 1.5}, "headroom"),
        ({"micro_batches": []}, "micro_batches"),
        ({"nodes": [{"kind": "H100", "memory": 10**400}]}, "memory"),
        ({"nodes": [{"kind": "H100", "price_per_hour": 1e308}]}, "price_per_hour"),
        ({"workload": {**OUTLINE["workload"], "updates_per_step": 512}}, "updates_per_step must divide the step's 256"),
        ({"workload": {**OUTLINE["workload"], "longest_response_tokens": 10}}, "at least response_tokens, 500"),
        ({"workload": {**OUTLINE["workload"], "response_tokens": "long"}}, "workload.response_tokens"),
    ],
)
def test_wrong_outline_is_refused_by_field_and_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=f"(?s){message}"):
        parse_outline({**OUTLINE, **change})


def test_job_file_is_no_outline() -> None:
    assert is_outline(OUTLINE)
    assert not is_outline({"name": "j", "steps": 3, "model": {}})


def model_file(folder: Path, name: str, hidden: int) -> None:
    config = {"model_type": "llama", "hidden_size": hidden, "intermediate_size": 96, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 51, "torch_dtype": "bfloat16"}
    (folder / name).write_text(json.dumps(config), encoding="utf-8")


def test_models_that_are_not_named_are_as_large_as_the_actor(tmp_path: Path) -> None:
    model_file(tmp_path, "a.json", 32)
    model_file(tmp_path, "r.json", 64)
    models = {"actor": "a.json", "reward": "r.json"}
    found = read_models(parse_outline({**OUTLINE, "models": models}), tmp_path)
    assert {name: model.decoder.hidden_size for name, model in found.items()} == {
        "actor": 32,
        "critic": 32,
        "reference": 32,
        "reward": 64,
    }


def test_model_that_the_algorithm_does_not_have_is_refused(tmp_path: Path) -> None:
    model_file(tmp_path, "a.json", 32)
    outline = parse_outline({**OUTLINE, "algorithm": "grpo", "models": {"actor": "a.json", "critic": "a.json"}})
    with pytest.raises(JobFileError, match=r"models\.critic.*grpo has no critic"):
        read_models(outline, tmp_path)


def test_model_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"^models\.actor: .*a\.json.*there is no such file"):
        read_models(parse_outline(OUTLINE), tmp_path)
