"""What must hold in any world, whatever was drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.emu.plan import Plan
from nereus.errors import LayoutError
from nereus.layout.layout import Layout
from nereus.sim.condition import Condition
from nereus.sim.responses import Lengths
from nereus.spec.drift import Target, What
from nereus.spec.hardware import ACCELERATORS, LinkClass
from tests.sim.worlds import LLAMA_8B, QWEN_32B, make_outline, make_plan, make_stage, make_truth

GENERATION, INFERENCE, TRAINING = "actor_generation", "reference_inference", "actor_training"
OUTLINE = make_outline()
seeds = st.integers(0, 2**31)
kinds = st.sampled_from(sorted(ACCELERATORS))
layouts = st.sampled_from([(1, 1, 4), (2, 1, 2), (1, 4, 2), (4, 2, 2), (8, 1, 1), (8, 2, 1), (16, 1, 1)])
micro_batches = st.sampled_from([1, 4, 32])
tokens = st.floats(64, 30_000)


def seconds(seed: int, stage: str, degrees: tuple[int, int, int], lengths: Lengths, **more: object) -> float:
    kind, micro_batch = str(more.get("kind", "H100")), int(str(more.get("micro_batch", 1)))
    truth = make_truth(make_outline(kind=kind), seed=seed)
    return truth.stage_seconds(stage, make_stage(stage, degrees, 0, micro_batch), lengths)


@settings(max_examples=150)
@given(seeds, st.sampled_from([GENERATION, INFERENCE, TRAINING]), layouts, micro_batches, kinds, tokens, st.floats(1, 3))
def test_longer_responses_never_take_less_time(
    seed: int, stage: str, degrees: tuple[int, int, int], micro_batch: int, kind: str, mean: float, more: float
) -> None:
    taken = [
        seconds(seed, stage, degrees, Lengths(mean * by, 4 * mean * more), kind=kind, micro_batch=micro_batch)
        for by in (1.0, more)
    ]
    assert taken[0] <= taken[1] * (1 + 1e-9)


@settings(max_examples=80)
@given(seeds, layouts, micro_batches, kinds, tokens, st.floats(1, 3))
def test_a_longer_longest_response_never_takes_less_time(
    seed: int, degrees: tuple[int, int, int], micro_batch: int, kind: str, mean: float, more: float
) -> None:
    taken = [
        seconds(seed, GENERATION, degrees, Lengths(mean, 2 * mean * by), kind=kind, micro_batch=micro_batch)
        for by in (1.0, more)
    ]
    assert taken[0] <= taken[1] * (1 + 1e-9)


@given(seeds, st.sampled_from([INFERENCE, TRAINING]), tokens)
def test_nothing_is_faster_than_the_datasheet(seed: int, stage: str, mean: float) -> None:
    """A forward is two FLOPs for each matrix element and token at least, an update three times that."""
    work, passes = OUTLINE.workload, 3 if stage == TRAINING else 1
    layer = LLAMA_8B.hidden_size * (2 * 4096 + 2 * 1024 + 3 * LLAMA_8B.ffn_size)
    products = work.global_batch * (work.prompt_tokens + mean) * LLAMA_8B.num_layers * layer
    ideal = passes * 2 * products / (4 * ACCELERATORS["H100"].flops_s("bfloat16"))
    assert seconds(seed, stage, (2, 1, 2), Lengths(mean, mean)) > ideal


@pytest.mark.parametrize("stage", [TRAINING, INFERENCE, GENERATION])
def test_tp_over_two_nodes_is_much_slower_than_inside_one(stage: str) -> None:
    plan, lengths = make_stage(stage, (8, 1, 1), 0, 4), Lengths(4096, 8192)
    for seed in range(20):
        one, two = (
            make_truth(make_outline(nodes=8 // devices, devices=devices), seed=seed).stage_seconds(stage, plan, lengths)
            for devices in (8, 4)
        )
        assert two > 1.3 * one


def test_a_pipeline_of_few_micro_batches_wastes_its_ranks() -> None:
    outline = make_outline(prompts_per_step=8, samples_per_prompt=1, updates_per_step=1)
    for seed in range(20):
        truth, lengths = make_truth(outline, seed=seed), Lengths(4096, 8192)
        flat = truth.stage_seconds(TRAINING, make_stage(TRAINING, (8, 1, 1), 0, 8), lengths)
        piped = truth.stage_seconds(TRAINING, make_stage(TRAINING, (1, 8, 1), 0, 8), lengths)
        assert piped > 2 * flat  # one micro-batch: seven eighths of the slots are empty


@pytest.mark.parametrize("stage", [TRAINING, GENERATION])
def test_kinds_differ_as_their_datasheets_do(stage: str) -> None:
    for seed in range(10):
        slow, middle, fast = (
            seconds(seed, stage, (2, 1, 4), Lengths(2048, 8192), kind=kind, micro_batch=2)
            for kind in ("V100", "A100-80GB", "B200")
        )
        assert slow > middle > fast


def test_worlds_differ_and_each_is_itself_again() -> None:
    plan, lengths = make_plan(OUTLINE, (2, 1, 4)), Lengths(1024, 4096)
    found = [make_truth(OUTLINE, seed=seed).step_seconds(plan, lengths)[0] for seed in (*range(8), *range(8))]
    assert len(set(found[:8])) == 8
    assert found[:8] == found[8:]


@pytest.mark.parametrize("stage", [TRAINING, INFERENCE, GENERATION])
def test_a_slow_device_slows_the_emus_that_it_is_part_of(stage: str) -> None:
    truth, plan, lengths = make_truth(OUTLINE), make_stage(stage, (2, 1, 4)), Lengths(1024, 4096)
    usual = truth.stage_seconds(stage, plan, lengths)
    slow, beside = (
        truth.stage_seconds(stage, plan, lengths, Condition.of({Target(What.DEVICE, (device,)): 1.5})) for device in (5, 12)
    )
    assert usual < slow <= 1.5 * usual
    assert beside == usual


def test_a_slow_network_slows_what_crosses_it_and_nothing_else() -> None:
    truth, lengths = make_truth(OUTLINE), Lengths(1024, 4096)
    slow = Condition.of({Target(What.LINK, (), LinkClass.NETWORK): 4.0})
    inside, across = make_stage(TRAINING, (2, 1, 4)), make_stage(TRAINING, (2, 1, 8))
    assert truth.stage_seconds(TRAINING, inside, lengths, slow) == truth.stage_seconds(TRAINING, inside, lengths)
    assert truth.stage_seconds(TRAINING, across, lengths, slow) > truth.stage_seconds(TRAINING, across, lengths)
    sources, targets = make_stage(TRAINING, (8, 1, 1)), make_stage(GENERATION, (8, 1, 1), 8)
    assert truth.sync_seconds(sources, targets, slow) == pytest.approx(4 * truth.sync_seconds(sources, targets), rel=0.2)


@given(seeds, st.sampled_from([(1, 2), (2, 4), (4, 8)]), tokens)
def test_more_tp_never_takes_more_memory(seed: int, degrees: tuple[int, int], longest: float) -> None:
    truth, lengths = make_truth(OUTLINE, seed=seed), Lengths(longest / 2, longest)
    less, more = (max(truth.peak_bytes(make_plan(OUTLINE, (tp, 1, 2)), lengths).values()) for tp in degrees)
    assert more < less


def test_peaks_are_at_least_the_state_that_must_be_there() -> None:
    """Weights of two models in half precision, and of one of them twelve bytes of optimizer more and a gradient."""
    truth = make_truth(OUTLINE, QWEN_32B)
    parameters = truth.models["actor"].num_parameters
    plan = Plan(0, {name: make_stage(name, (8, 1, 2)) for name in OUTLINE.workflow.holders})
    peaks = truth.peak_bytes(plan, Lengths(1024, 4096))
    assert sorted(peaks) == list(range(16))
    assert min(peaks.values()) > parameters / 8 * (2 + 2 + 14 + 2)


def test_what_stays_adds_up_over_the_model_stages_of_a_device() -> None:
    """A frozen reference elsewhere leaves its half-precision weights' bytes, and nothing else."""
    truth, lengths = make_truth(OUTLINE), Lengths(1024, 4096)
    here = make_plan(OUTLINE, (4, 1, 2))
    apart = Plan(0, {**here.stages, INFERENCE: make_stage(INFERENCE, (4, 1, 2), 8)})
    less = truth.peak_bytes(here, lengths)[0] - truth.peak_bytes(apart, lengths)[0]
    assert less == pytest.approx(truth.models["actor"].num_parameters / 4 * 2, rel=1e-3)


def test_recomputation_and_zero1_take_less_memory_and_recomputation_more_time() -> None:
    truth, lengths = make_truth(OUTLINE), Lengths(4096, 8192)
    plain = make_plan(OUTLINE, (2, 1, 4), 2)
    for change in ({"recompute": True}, {"zero1": True}):
        stage = replace(plain.stages[TRAINING], **change)
        changed = Plan(0, {**plain.stages, TRAINING: stage})
        assert truth.peak_bytes(changed, lengths)[0] < truth.peak_bytes(plain, lengths)[0]
        if "recompute" in change:
            assert truth.stage_seconds(TRAINING, stage, lengths) > truth.stage_seconds(
                TRAINING, plain.stages[TRAINING], lengths
            )


def test_the_baseline_of_remax_generates_one_response_to_each_prompt() -> None:
    """A quarter of the sequences, on the same EMUs: less time than the samples, and not under a quarter of it."""
    outline = make_outline("remax")
    _, stages = make_truth(outline).step_seconds(make_plan(outline, (2, 1, 4), 1024), Lengths(1024, 1024))
    assert 0.25 < stages["baseline_generation"] / stages["actor_generation"] < 0.8


def test_noise_is_about_one_and_belongs_to_the_step() -> None:
    truth, plan, lengths = make_truth(OUTLINE), make_plan(OUTLINE, (2, 1, 4)), Lengths(1024, 4096)
    usual, _ = truth.step_seconds(plan, lengths)
    taken = [truth.realised(step, plan, lengths)[0] for step in range(2000)]
    assert taken[1500] == truth.realised(1500, plan, lengths)[0]
    assert len(set(taken)) == 2000
    assert sum(taken) / len(taken) == pytest.approx(usual, rel=0.01)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (make_stage(TRAINING, (8, 1, 4)), "device 16 is not in the pool of 16"),
        (replace(make_stage(TRAINING, (2, 1, 4)), layout=Layout(1, 1, fsdp=2)), "an axis besides tp and pp"),
    ],
)
def test_plans_that_the_world_does_not_have_are_refused(stage: object, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        make_truth(OUTLINE).stage_seconds(TRAINING, stage, Lengths(1024, 4096))  # type: ignore[arg-type]


def test_a_plan_without_a_holder_is_refused() -> None:
    plan = Plan(3, {TRAINING: make_stage(TRAINING, (2, 1, 4))})
    with pytest.raises(LayoutError, match="plan of epoch 3: it has no actor_generation"):
        make_truth(OUTLINE).step_seconds(plan, Lengths(1024, 4096))


def test_in_a_mixed_pool_the_replicas_on_the_slower_kind_are_waited_for() -> None:
    """Eight devices of each kind, replicas of both: as slow as if all were of the slower kind, gradients aside."""
    mixed = make_outline()
    slow, fast = make_outline(kind="A100-80GB"), make_outline(kind="H100")
    mixed = mixed.model_copy(update={"nodes": tuple(pool.nodes[0].model_copy(update={"count": 1}) for pool in (fast, slow))})
    plan, lengths = make_stage(INFERENCE, (2, 1, 8)), Lengths(1024, 4096)
    found = {name: make_truth(o).stage_seconds(INFERENCE, plan, lengths) for name, o in (("mixed", mixed), ("slow", slow))}
    assert found["mixed"] == found["slow"] > make_truth(fast).stage_seconds(INFERENCE, plan, lengths)
