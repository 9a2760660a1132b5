"""Plans as OpenRLHF's flags: what DeepSpeed's models share, how its launcher counts, and what OpenRLHF cannot run."""

from __future__ import annotations

import pytest

from nereus.integrations.openrlhf.flags import DEEPSPEED, OPENRLHF, flag
from nereus.spec.stages import ACTOR_TRAINING
from nereus.spec.workflow import CRITIC_TRAINING
from tests.integrations.outlines import GRPO, WORKLOAD, lines, outline, planned


def test_launcher_accepts_the_pool() -> None:
    """train_ppo_ray.py, colocate_all: num_nodes * num_gpus_per_node == num_engines * vllm.tensor_parallel_size."""
    found = lines(OPENRLHF, outline())
    assert "train.colocate_all" in found
    world = int(found["actor.num_nodes"]) * int(found["actor.num_gpus_per_node"])
    assert world == int(found["vllm.num_engines"]) * int(found["vllm.tensor_parallel_size"]) == 8
    roles = ("actor", "ref", "critic", "reward")
    assert {(found[f"{role}.num_nodes"], found[f"{role}.num_gpus_per_node"]) for role in roles} == {("2", "4")}


def test_launcher_accepts_the_batches() -> None:
    """The last assertion of train_ppo_ray.py, and the accumulation of deepspeed.py, which must come out even."""
    found = {key: int(value) for key, value in lines(OPENRLHF, outline()).items() if value.isdigit()}
    ranks = 8 // found["ds.tensor_parallel_size"]
    samples = found["rollout.batch_size"] * found["rollout.n_samples_per_prompt"]
    assert samples == 128
    assert samples // found["rollout.micro_batch_size"] >= ranks
    assert found["train.batch_size"] == 64
    assert 64 % (found["train.micro_batch_size"] * ranks) == 0
    assert found["data.max_len"] == 256 + found["rollout.max_new_tokens"] == 256 + 1024


def test_models_under_deepspeed_agree_in_what_one_flag_sets() -> None:
    plan = planned(OPENRLHF, outline())
    options = {holder: option for holder, option in plan.options.items() if holder in DEEPSPEED}
    assert len(options) == 4
    assert len({option.run.tp for option in options.values()}) == 1
    assert {option.run.pp for option in plan.options.values()} == {1}
    actor, critic = plan.options[ACTOR_TRAINING], plan.options[CRITIC_TRAINING]
    assert (actor.run.micro_batch, actor.recomputes) == (critic.run.micro_batch, critic.recomputes)


def test_engine_is_given_what_the_idle_models_leave() -> None:
    plan, found = planned(OPENRLHF, outline()), lines(OPENRLHF, outline())
    idle = sum(option.resident_bytes for holder, option in plan.options.items() if holder in DEEPSPEED)
    share = float(found["vllm.gpu_memory_utilization"])
    assert 0 <= 0.9 - idle / (40 * 2**30) - share < 0.01


def test_norms_are_priced_whole_since_deepspeed_does_not_shard_sequences() -> None:
    assert not any(option.run.sequence_parallel for option in planned(OPENRLHF, outline()).options.values())


@pytest.mark.parametrize(("value", "line"), [(True, "--train.colocate_all"), (2, "--train.colocate_all 2")])
def test_flag_that_is_on_has_no_value(value: object, line: str) -> None:
    assert flag("train.colocate_all", value) == line


def test_algorithms_that_openrlhf_does_not_have_are_named() -> None:
    assert "no remax" in OPENRLHF.forbids(outline(algorithm="remax"))
    alone = outline(**GRPO, workload={**WORKLOAD, "samples_per_prompt": 1})
    assert "samples_per_prompt of 2 or more" in OPENRLHF.forbids(alone)
