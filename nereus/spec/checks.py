"""The rules between fields: each check takes a job and yields what is wrong with it.

The rules of a single layout hold at the start and after each scripted transition; `script.py` walks the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from math import prod

from nereus.spec.cluster import Cluster
from nereus.spec.decoder import Decoder, tp_degrees
from nereus.spec.devices import format_devices
from nereus.spec.job import Job
from nereus.spec.model import SMOLLM2
from nereus.spec.plan import StageChoice
from nereus.spec.problems import Problem, one_of, unknown
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, STAGES

Check = Callable[[Job], Iterator[Problem]]

LETTER_VOCAB = 64
"""Tokens of letter_class: its four classes of 16 are the whole alphabet of nereus.rl.tokens."""


def check_weights(job: Job) -> Iterator[Problem]:
    """Published weights have their own shape and tokenizer."""
    if job.weights == "smollm2" and job.model != SMOLLM2:
        yield Problem("model", "another shape than SmolLM2's", "with weights smollm2, leave model out")
    if job.weights == "smollm2" and job.task.name != "chain_sum":
        yield Problem("task.name", job.task.name, "with weights smollm2 it must be chain_sum")


def check_task(job: Job) -> Iterator[Problem]:
    """The vocabulary holds the task's tokens, and a step draws no prompt twice."""
    if job.task.name == "letter_class" and job.model.vocab_size != LETTER_VOCAB:
        yield Problem(
            "model.vocab_size",
            job.model.vocab_size,
            f"letter_class has exactly {LETTER_VOCAB} tokens, in four classes of 16",
        )
    if job.task.num_prompts < job.workload.prompts_per_step:
        least = job.workload.prompts_per_step
        yield Problem("task.num_prompts", job.task.num_prompts, f"it must be at least prompts_per_step, which is {least}")


def check_updates(job: Job) -> Iterator[Problem]:
    """The updates of a step have equal shares of its sequences."""
    updates, batch = job.grpo.updates_per_step, job.global_batch
    if batch % updates:
        yield Problem(
            "grpo.updates_per_step", updates, f"it must divide the global batch of {batch} ({_batch_in_words(job)})"
        )


def check_response_cap(job: Job) -> Iterator[Problem]:
    """The corners of the curriculum come in the order of their steps."""
    for index, (a, b) in enumerate(pairwise(job.workload.response_cap), 1):
        if b.step <= a.step:
            yield Problem(f"workload.response_cap[{index}].step", b.step, f"it must be above the one before, {a.step}")


def check_rollouts(job: Job) -> Iterator[Problem]:
    """A path is given exactly when rollouts are read."""
    if job.rollouts.source == "recorded" and job.rollouts.path is None:
        yield Problem("rollouts.path", None, "source recorded needs the path of recorded rollouts")
    if job.rollouts.source == "live" and job.rollouts.path is not None:
        yield Problem("rollouts.path", job.rollouts.path, "only source recorded reads a path; to write one, use record")


def check_policy(job: Job) -> Iterator[Problem]:
    """Either a script or the policy changes the plan, and only the policy follows a pool that changes."""
    if job.policy.adapt and job.transitions:
        yield Problem("policy.adapt", True, "with scripted transitions it must be false; drop the one or the other")
    if job.policy.adapt and job.cluster.device.memory is None:
        yield Problem("cluster.device.memory", None, "plans are made within it: declare it, such as 80GiB, or do not adapt")
    for index, name in enumerate(job.policy.pins):
        if name not in STAGES:
            yield Problem(f"policy.pins[{index}]", name, unknown(name, STAGES, "model-stage"))
    if job.availability is not None and not job.policy.adapt:
        yield Problem("availability", job.availability, "it needs policy.adapt true: a fixed plan can't follow the pool")


def check_plan(job: Job) -> Iterator[Problem]:
    """The plan at the start names all model-stages, each with a layout that the model and the cluster admit."""
    for stage in STAGES:
        if stage not in job.plan:
            yield Problem(f"plan.{stage}", None, f"the model-stage is required; a plan names {', '.join(STAGES)}")
    yield from check_choices(job, "plan", job.plan)


def check_choices(job: Job, field: str, choices: Mapping[str, StageChoice]) -> Iterator[Problem]:
    """What is wrong with the layouts and devices of some model-stages, whoever else is on these devices."""
    for stage, choice in choices.items():
        if stage not in STAGES:
            yield Problem(f"{field}.{stage}", _in_words(choice), unknown(stage, STAGES, "model-stage"))
            continue
        yield from _check_layout(job, f"{field}.{stage}", stage, choice)
        yield from _check_batch(job, f"{field}.{stage}", stage, choice)
        yield from _check_recompute(f"{field}.{stage}", stage, choice)
        degrees = {"tp": choice.tp, "pp": choice.pp, "dp": choice.dp}
        yield from check_devices(f"{field}.{stage}.devices", choice.devices, degrees, job.cluster)


def _check_layout(job: Job, field: str, stage: str, choice: StageChoice) -> Iterator[Problem]:
    decoder = job.model.decoder
    yield from check_tp(f"{field}.tp", choice.tp, decoder, job.cluster.num_devices)
    if stage == ACTOR_GENERATION and choice.pp != 1:
        yield Problem(f"{field}.pp", choice.pp, "it must be 1: generation has no pipeline")
    else:
        yield from check_pp(f"{field}.pp", choice.pp, decoder)


def _check_recompute(field: str, stage: str, choice: StageChoice) -> Iterator[Problem]:
    if choice.recompute and stage != ACTOR_TRAINING:
        yield Problem(f"{field}.recompute", True, f"only {ACTOR_TRAINING} has a backward; leave it out")


def check_tp(field: str, tp: int, decoder: Decoder, most: int) -> Iterator[Problem]:
    """No head is cut through, and every TP rank has the key-value heads that its query heads read."""
    heads, kv_heads = decoder.num_heads, decoder.num_kv_heads
    allowed = tp_degrees(decoder, most)
    if heads % tp:
        yield Problem(field, tp, f"it must divide the {heads} query heads: {one_of(allowed)}")
    elif kv_heads % tp and tp % kv_heads:
        rule = f"it must divide the {kv_heads} key-value heads or be a multiple of them"
        yield Problem(field, tp, f"{rule}: {one_of(allowed)}")


def check_pp(field: str, pp: int, decoder: Decoder) -> Iterator[Problem]:
    """Every pipeline rank has a layer."""
    if pp > decoder.num_layers:
        yield Problem(field, pp, f"it must be at most the {decoder.num_layers} layers")


def _check_batch(job: Job, field: str, stage: str, choice: StageChoice) -> Iterator[Problem]:
    batch, what = job.global_batch, f"the global batch of {job.global_batch} ({_batch_in_words(job)})"
    if stage == ACTOR_TRAINING and job.grpo.updates_per_step > 1:
        batch //= job.grpo.updates_per_step
        what = f"the {batch} sequences of one update ({_batch_in_words(job)}, {job.grpo.updates_per_step} updates)"
    if batch % choice.dp:
        yield Problem(f"{field}.dp", choice.dp, f"it must divide {what}: {one_of(_divisors(job, batch))}")
    elif choice.micro_batch > max(batch // choice.dp, 1):
        share = f"it must be at most {batch // choice.dp}, the share of one of {choice.dp} EMUs in {what}"
        yield Problem(f"{field}.micro_batch", choice.micro_batch, share)


def _divisors(job: Job, batch: int) -> list[int]:
    return [dp for dp in range(1, min(max(batch, 1), job.cluster.num_devices) + 1) if batch % dp == 0]


def _batch_in_words(job: Job) -> str:
    return f"{job.workload.prompts_per_step} prompts x {job.workload.samples_per_prompt} samples"


def check_devices(
    field: str, devices: tuple[int, ...], degrees: Mapping[str, int], cluster: Cluster | None
) -> Iterator[Problem]:
    """As many different devices as the degrees take, all of them in the cluster, if there is one."""
    needed = prod(degrees.values())
    takes = f"{' x '.join(f'{name} {degree}' for name, degree in degrees.items())} takes {needed} devices"
    if cluster is not None:
        there = f"the cluster has {cluster.num_devices} ({cluster.nodes} nodes x {cluster.devices_per_node})"
        if needed > cluster.num_devices:
            yield Problem(field, needed, f"{takes}, and {there}; lower {one_of(degrees)}")
            return
        beyond = tuple(device for device in devices if device >= cluster.num_devices)
        if beyond:
            numbered = format_devices(tuple(range(cluster.num_devices)))
            yield Problem(field, format_devices(beyond), f"{there}, numbered {numbered}")
    if len(set(devices)) != len(devices):
        yield Problem(field, format_devices(devices), "a device can be named once only")
    if len(devices) != needed:
        seen = f"{len(devices)} {'is' if len(devices) == 1 else 'are'} named"
        yield Problem(field, format_devices(devices), f"{takes}, {seen}")


def _in_words(choice: StageChoice) -> str:
    return f"tp {choice.tp} pp {choice.pp} dp {choice.dp}"
