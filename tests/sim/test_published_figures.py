"""The surfaces that worlds are drawn around, against the measurements that they stand for.

The last two tests are of whole RL steps and of sizes that nothing was fitted on.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from nereus.sim.decoding import Decode
from nereus.sim.footprint import MemorySurface, Shard
from nereus.sim.links import Links
from nereus.sim.published import DECODING, TRAINING, Published
from nereus.sim.responses import Lengths
from nereus.sim.running import Run
from nereus.spec.hardware import ACCELERATORS, GIB, LinkClass
from tests.sim.measured import Update, decoder, layouts_a100, rollouts, rows, run, static_batches, sweep_h100
from tests.sim.worlds import LLAMA_8B, QWEN_32B, make_outline, make_plan, make_stage, make_truth


def seconds(of: Published, one: Run) -> float:
    return one.ideal_s * of.surface.slowdown(one.ratios(), one.bubble)


def iteration_s(of: Published, decode: Decode) -> float:
    return decode.ideal_s * of.surface.slowdown(decode.ratios())


def near_best(updates: list[Update]) -> list[Update]:
    """Those within twice the time of the best one on the same devices: what anybody would run."""
    best: dict[tuple[str, ...], float] = {}
    for one in updates:
        if one.seconds is not None:
            best[one.group] = min(best.get(one.group, one.seconds), one.seconds)
    return [one for one in updates if one.seconds is not None and one.seconds < 2 * best[one.group]]


def error(of: Published, updates: list[Update]) -> float:
    return median(abs(seconds(of, one.run) / one.seconds - 1) for one in updates if one.seconds)


@pytest.fixture(scope="module")
def sweep(data_dir: Path) -> list[Update]:
    return sweep_h100(data_dir)


def test_training_on_h100_is_as_far_off_as_is_said(sweep: list[Update]) -> None:
    roomy = [one for one in sweep if one.peak_bytes is not None and one.peak_bytes < 0.85 * 80 * GIB]
    assert len(roomy) > 600
    assert error(TRAINING["H100"], near_best(roomy)) == pytest.approx(TRAINING["H100"].error, abs=0.01)


def test_training_on_a100_is_as_far_off_as_is_said(data_dir: Path) -> None:
    updates = layouts_a100(data_dir, "single") + layouts_a100(data_dir, "multi")
    assert len(updates) == 1440 + 41
    assert error(TRAINING["A100-80GB"], near_best(updates)) == pytest.approx(TRAINING["A100-80GB"].error, abs=0.01)


def test_token_steps_on_a100_are_as_far_off_as_is_said(data_dir: Path) -> None:
    of, batches = DECODING["A100-80GB"], static_batches(data_dir)
    found = median(abs(iteration_s(of, one.decode) / one.seconds - 1) for one in batches)
    assert found == pytest.approx(of.error, abs=0.01)


@pytest.mark.parametrize("name", ["1.5B", "7B"])
def test_generation_of_rl_runs_is_right_in_most_steps(data_dir: Path, name: str) -> None:
    of, steps = DECODING["H100"], rollouts(data_dir, name)
    assert len(steps) > 600
    assert median(abs(iteration_s(of, one.decode) / one.seconds - 1) for one in steps) < 0.04


def test_prompts_take_about_what_the_training_surface_says_of_a_forward(data_dir: Path) -> None:
    """Not fitted: the surface has seen updates only."""
    found = []
    for one in static_batches(data_dir):
        decode, tokens = one.decode, float(one.name[2])
        forward = Run(
            size=decode.size,
            accelerator=decode.accelerator,
            tp=decode.tp,
            micro_batch=int(decode.concurrent),
            sequences=decode.concurrent,
            tokens=tokens,
            trains=False,
        )
        found.append(seconds(TRAINING["A100-80GB"], forward) / one.prompt_s)
    assert median(found) == pytest.approx(1.0, abs=0.15)


def fullest_bytes(one: Update, surface: MemorySurface) -> float:
    work = one.run
    ranks = (
        Shard(size=work.size, tp=work.tp, pp=work.pp, rank=rank, dp=work.dp, trains=True, zero1=work.zero1)
        for rank in range(work.pp)
    )
    peaks = (
        shard.resident_bytes + shard.training_bytes(surface, work.micro_batch, work.tokens, work.micro_batches)
        for shard in ranks
    )
    return max(peaks) + surface.fixed


def test_peaks_are_as_far_off_as_is_said(sweep: list[Update]) -> None:
    surface = MemorySurface()
    found = [abs(fullest_bytes(one, surface) / one.peak_bytes - 1) for one in sweep if one.peak_bytes is not None]
    assert median(found) == pytest.approx(0.097, abs=0.015)


def test_most_configurations_that_crashed_are_over_the_card_and_few_that_ran(sweep: list[Update]) -> None:
    over = [(one.seconds is None, fullest_bytes(one, MemorySurface()) > 80 * GIB) for one in sweep]
    crashed, ran = ([big for failed, big in over if failed is which] for which in (True, False))
    assert sum(crashed) / len(crashed) > 0.75
    assert sum(ran) / len(ran) < 0.05


def test_sends_reach_what_was_measured_within_what_kinds_differ_by(data_dir: Path) -> None:
    links = Links(ACCELERATORS["H100"], seed=0)
    found = []
    for line in rows(data_dir, "published/collectives.csv"):
        if (
            line["collective"] == "send_recv"
            and line["hardware"].startswith("H100-80GB DGX")
            and float(line["size_bytes"]) > 1e6
        ):
            link = LinkClass.NODE if line["nodes"] == "1" else LinkClass.NETWORK
            found.append(links.move_seconds(float(line["size_bytes"]), link) / float(line["time_ms_median"]) * 1e3)
    assert len(found) > 30
    assert 0.7 < median(found) < 1.6


def test_weak_scaling_to_three_thousand_devices_is_about_right(data_dir: Path) -> None:
    """Narayanan et al. 2021, table 1: 1.7B to 1T on 32 to 3,072 A100; TFLOP/s by their formula. Nothing was fitted on it."""
    found = []
    for line in rows(data_dir, "published/training_gpt_a100_weak_scaling.csv"):
        if "Narayanan" not in line["source"]:
            continue
        model = decoder(line, gated=False, vocabulary=51_200)
        one = run(line, "A100-80GB", model, int(line["global_batch"]), int(line["seqlen"]), recompute=True)
        layers, hidden, tokens = int(line["layers"]), int(line["hidden"]), int(line["seqlen"])
        flops = 96 * int(line["global_batch"]) * tokens * layers * hidden**2
        flops *= 1 + tokens / (6 * hidden) + 51_200 / (16 * layers * hidden)
        measured = flops / int(line["gpus"]) / float(line["tflops_per_gpu"]) / 1e12
        found.append(seconds(TRAINING["A100-80GB"], one) / measured)
    assert len(found) == 10
    assert median(found) == pytest.approx(1.0, abs=0.1)
    assert 0.7 < min(found) < max(found) < 1.3


@pytest.mark.parametrize(
    ("model", "nodes", "mean", "degrees", "micro_batch", "published_s"),
    [("8B", 2, 1060 - 100, (2, 1, 8), 128, (92.8, 97.7)), ("32B", 4, 3206 - 100, (4, 4, 2), 256, (376.0, 393.0))],
)
def test_a_whole_step_takes_about_what_nemo_rl_published(
    model: str, nodes: int, mean: float, degrees: tuple[int, int, int], micro_batch: int, published_s: tuple[float, float]
) -> None:
    """NVIDIA NeMo-RL performance summary, v0.4 and v0.5: on policy, H100, 2,048 responses of at most 4,096 tokens.

    Not fitted. Prompts are taken to have 100 tokens; the layouts of generation are those that it prints.
    """
    outline = make_outline(
        nodes=nodes, prompts_per_step=128, samples_per_prompt=16, prompt_tokens=100, response_tokens=1000, updates_per_step=4
    )
    tp = {"8B": 1, "32B": 4}[model]
    plan = make_plan(outline, degrees)
    wide = (tp, 1, 8 * nodes // tp)
    stages = dict(plan.stages)
    for name in ("actor_generation", "reference_inference"):
        stages[name] = make_stage(name, wide, 0, micro_batch if name == "actor_generation" else 1)
    decoder_of = {"8B": LLAMA_8B, "32B": QWEN_32B}[model]
    worlds = [make_truth(outline, decoder_of, seed) for seed in range(15)]
    taken = [world.step_seconds(type(plan)(0, stages), Lengths(mean, 4096))[0] for world in worlds]
    assert 0.8 * published_s[0] < median(taken) < 1.2 * published_s[1]
