"""The plan that a logged run had, held against the outline of its job."""

from __future__ import annotations

from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.spec.outline import parse_outline
from nereus.spec.ran import parse_ran
from tests.planner.test_outlined import SMALL

OUTLINE = parse_outline(
    {
        "name": "o",
        "algorithm": "grpo",
        "models": {"actor": "a.json", "reward": "rule"},
        "workload": {"prompts_per_step": 16, "samples_per_prompt": 2, "prompt_tokens": 100, "response_tokens": 500},
        "nodes": [{"kind": "H100", "devices": 4}, {"kind": "A100-80GB", "count": 2, "devices": 4}],
    }
)
MODELS = {"actor": SMALL, "reference": SMALL}


def ran(data: object) -> dict[str, Any]:
    return parse_ran(data, "ran.json", OUTLINE, MODELS)


def test_devices_say_which_kind_it_ran_on() -> None:
    found = ran({"actor_generation": {"dp": 4}, "actor_training": {"tp": 2, "dp": 2, "devices": "8-11", "recompute": True}})
    assert {holder: stage.nodes.kind for holder, stage in found.items()} == {
        "actor_generation": "H100",
        "actor_training": "A100-80GB",
    }
    assert found["actor_training"].choice.recompute


def test_answer_of_nereus_plan_is_taken_as_it_is() -> None:
    holder = {"kind": "H100", "tp": 2, "dp": 2, "devices": [0, 1, 2, 3], "memory_bytes": {"logits": 1}, "resident_bytes": 2}
    answer = {"job": "o", "answers": [{"devices": 12, "plans": [{"holders": {"actor_training": holder}}]}]}
    assert ran(answer)["actor_training"].choice.tp == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"critic_training": {}}, "there is no such model-stage"),
        ({"actor_training": {"dp": 4, "devices": "2-5"}}, "actor_training.devices: '2-5'.*one kind and memory"),
        ({"actor_training": {"dp": 2, "devices": "11-12"}}, "'12'.*devices 0-11; declare the nodes that the run had"),
        ({"actor_training": {"fsdp": 4}}, "actor_training.fsdp: 4.*count FSDP ranks as dp"),
        ({"actor_training": {"tp": 3}}, "actor_training.tp: 3.*query heads"),
        ({"actor_training": {"dp": 64}}, "actor_training.dp: 64.*32 sequences"),
        ({"actor_training": 4}, "actor_training: 4.*mapping"),
        ({"answers": [{}, {}]}, "answers: '2 answers'.*one plan is needed"),
    ],
)
def test_what_the_outlines_job_cannot_have_run_is_refused(data: object, message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        ran(data)
