"""Training is the same under any layout, and under any sequence of layouts, as in a single process.

    live run on one device -> its rollouts, cut to ragged lengths -> { reference, one layout, eight transitions } -> equal?

The bounds are those of the project's goal, in float64: losses and gradient norms to 1e-10 relative, parameters to 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nereus.rl.rollouts import RecordedRollouts, Rollout, RolloutRecorder
from nereus.spec.job import Job
from tests.actors.equality import assert_equal, differences, furthest, relative
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, Run, make_job, run, stage
from tests.reference import Trained, train

pytestmark = pytest.mark.ray

UPDATES = TINY["grpo"]["updates_per_step"]

FIXED_PLAN = {
    GENERATION: stage(2, 1, 2, "0-3", 4),
    REFERENCE: stage(1, 2, 2, "4-7", 3),
    TRAINING: stage(2, 2, 2, "0-7", 2),
}

LAYOUTS = [
    ("tp1 pp4 dp2, recomputed", {"stages": {TRAINING: {**stage(1, 4, 2, "0-7", 2), "recompute": True}}}),
    ("tp2 pp1 dp4", {"stages": {TRAINING: stage(2, 1, 4, "0-7", 2), GENERATION: stage(4, 1, 2, "0-7", 8)}}),
    ("tp1 pp1 dp8", {"stages": {TRAINING: stage(1, 1, 8, "0-7", 1), REFERENCE: stage(2, 3, 1, "2-7", 5)}}),
    ("tp2 pp4 dp1", {"stages": {TRAINING: stage(2, 4, 1, "0-7", 3)}}),
    ("tp4 pp2 dp1", {"stages": {TRAINING: stage(4, 2, 1, "0-7", 8), REFERENCE: stage(4, 1, 2, "0-7", 8)}}),
    ("tp2 pp2 dp2", {"stages": {TRAINING: stage(2, 2, 2, "0-7", 1)}}),
    (
        "tp2 pp1 dp2, 4-7 leave",
        {
            "leave": "4-7",
            "stages": {
                GENERATION: stage(1, 1, 4, "0-3", 4),
                REFERENCE: stage(1, 1, 2, "2-3", 8),
                TRAINING: stage(2, 1, 2, "0-3", 4),
            },
        },
    ),
    ("tp2 pp2 dp2, 4-7 join", {"join": "4-7", "stages": {TRAINING: stage(2, 2, 2, "0-7", 2)}}),
]
"""What each step but the first trains on, after the transition at its boundary. A micro-batch of 3 leaves a rest, pp 4 has
layers in runs of 1 and 2, and tp 4 shares each of 2 key-value heads."""

SCRIPT = [{"step": step, **change} for step, (_, change) in enumerate(LAYOUTS, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same")


@pytest.fixture(scope="module")
def live(folder: Path) -> Run:
    """A live run on one device, which records its rollouts."""
    job = make_job(
        TINY,
        cluster={"nodes": 1, "devices_per_node": 1},
        plan={GENERATION: stage(1, 1, 1, "0", 16), REFERENCE: stage(1, 1, 1, "0", 16), TRAINING: stage(1, 1, 1, "0", 8)},
        rollouts={"record": str(folder / "live")},
    )
    return run(job, folder / "live-run")


@pytest.fixture(scope="module")
def ragged(live: Run, folder: Path) -> Path:
    """The recorded rollouts with responses of 1 to 10 tokens: the task itself has no end token."""
    record, recorder = RecordedRollouts(folder / "live"), RolloutRecorder(folder / "ragged")
    for step in range(1, live.job.steps + 1):
        recorder.write(step, shortened(record.step(step), step))
    return folder / "ragged"


@pytest.fixture(scope="module")
def replay(ragged: Path) -> Callable[..., Job]:
    def make(**sections: Any) -> Job:
        rollouts = {"source": "recorded", "path": str(ragged)}
        return make_job(TINY, **{"plan": FIXED_PLAN, "rollouts": rollouts, **sections})

    return make


@pytest.fixture(scope="module")
def reference(replay: Callable[..., Job], ragged: Path) -> Trained:
    return train(replay(), ragged)


@pytest.fixture(scope="module")
def one_layout(replay: Callable[..., Job], folder: Path) -> Run:
    return run(replay(), folder / "one-layout")


@pytest.fixture(scope="module")
def many_layouts(replay: Callable[..., Job], folder: Path) -> Run:
    return run(replay(transitions=SCRIPT), folder / "many-layouts")


def shortened(rollout: Rollout, step: int) -> Rollout:
    """The rollout with each response cut to its own length, and nothing left behind its end."""
    lengths = torch.tensor([1 + (3 * row + step) % int(most) for row, most in enumerate(rollout.response_length)])
    cut = replace(rollout, response_length=lengths)
    inside = torch.arange(rollout.tokens.shape[1]) < (rollout.prompt_length + lengths)[:, None]
    return replace(
        cut,
        tokens=torch.where(inside, rollout.tokens, 0),
        old_logprobs=torch.where(cut.response_mask, rollout.old_logprobs, 0.0),
    ).rows(0, len(lengths))


def test_live_training_equals_the_single_process_on_what_it_recorded(
    live: Run, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    assert_equal(differences(live, train(live.job, folder / "live")), record_property)


def test_reference_meets_every_term_of_the_objective(reference: Trained, ragged: Path) -> None:
    rollout = RecordedRollouts(ragged).step(9)
    assert len(set(rollout.prompt_length.tolist())) > 1
    assert len(set(rollout.response_length.tolist())) > 5
    assert reference.clipped_tokens > 10
    assert reference.step_kls(UPDATES)[-1] > 1e-3
    assert max(reference.grad_norms) > TINY["optimizer"]["max_grad_norm"]
    first = train(make_job(TINY, plan=FIXED_PLAN, steps=1), ragged).parameters
    assert furthest(first, reference.parameters) > 1e-2


def test_one_layout_of_tp2_pp2_dp2_equals_the_single_process(
    one_layout: Run, reference: Trained, record_property: Callable[[str, object], None]
) -> None:
    assert_equal(differences(one_layout, reference), record_property)


def test_run_through_eight_transitions_equals_the_single_process(
    many_layouts: Run, reference: Trained, record_property: Callable[[str, object], None]
) -> None:
    assert_equal(differences(many_layouts, reference), record_property)


def test_run_through_eight_transitions_equals_the_run_on_one_layout(
    many_layouts: Run, one_layout: Run, record_property: Callable[[str, object], None]
) -> None:
    found = {
        "loss": relative(many_layouts.losses, one_layout.losses),
        "kl": relative([step.kl for step in many_layouts.steps], [step.kl for step in one_layout.steps]),
        "grad_norm": relative(many_layouts.grad_norms, one_layout.grad_norms),
        "parameters": furthest(many_layouts.parameters, one_layout.parameters),
    }
    assert_equal(found, record_property)
    assert [step.updates for step in many_layouts.steps] == [step.updates for step in one_layout.steps]
    assert many_layouts.steps[-1].updates == TINY["steps"] * UPDATES
    assert [step.num_samples for step in many_layouts.steps] == [16] * TINY["steps"]
    assert many_layouts.summary.samples_seen == one_layout.summary.samples_seen == 4 * TINY["steps"]


def test_every_transition_keeps_the_digest_and_no_sample_is_lost(many_layouts: Run) -> None:
    summary = many_layouts.summary
    assert [t["step"] for t in summary.transitions] == list(range(1, TINY["steps"]))
    assert all(t["digest_equal"] for t in summary.transitions)
    moved = [name for t, (name, _) in zip(summary.transitions, LAYOUTS, strict=True) if not t["bytes_moved"]]
    assert moved == ["tp2 pp4 dp1"], "whole replicas become one unit by dropping what each no longer holds"
    assert (summary.samples_repeated, summary.samples_skipped) == (0, 0)
    used = {name for t in summary.transitions for name, count in t["primitives"].items() if count}
    assert used >= {"Split", "Merge", "Extend", "Destroy"}


def test_transitions_carry_out_the_layouts_of_the_script(many_layouts: Run) -> None:
    for report, (name, change) in zip(many_layouts.transitions, LAYOUTS, strict=True):
        for model_stage, choice in change["stages"].items():
            plan = report.plan.stages[model_stage]
            found = plan.layout.tp, plan.layout.pp, plan.dp
            assert found == (choice["tp"], choice["pp"], choice["dp"]), name
    assert many_layouts.transitions[-2].left == many_layouts.transitions[-1].joined == (4, 5, 6, 7)
    assert many_layouts.summary.final_plan[TRAINING]["dp"] == 2


def test_float32_run_through_eight_transitions_stays_near_the_single_process(
    replay: Callable[..., Job], folder: Path, ragged: Path, record_property: Callable[[str, object], None]
) -> None:
    job = replay(dtype="float32", transitions=SCRIPT)
    found = run(job, folder / "float32")
    assert_equal(differences(found, train(job, ragged)), record_property, losses=1e-4, parameters=1e-4)
    assert all(t["digest_equal"] for t in found.summary.transitions)


def test_tied_embeddings_over_pipelines_equal_the_single_process_on_rollouts_of_a_float32_run(
    replay: Callable[..., Job], folder: Path, ragged: Path, record_property: Callable[[str, object], None]
) -> None:
    plan = {**FIXED_PLAN, TRAINING: stage(2, 4, 1, "0-7", 3)}
    script = [
        {"step": 2, "stages": {TRAINING: stage(1, 2, 4, "0-7", 2), REFERENCE: stage(2, 2, 1, "0-3", 4)}},
        {"step": 4, "stages": {TRAINING: stage(1, 1, 8, "0-7", 1)}},
    ]
    record, recorder = RecordedRollouts(ragged), RolloutRecorder(folder / "ragged32")
    for step in range(1, 6):
        rollout = record.step(step)
        recorder.write(step, replace(rollout, old_logprobs=rollout.old_logprobs.float()))
    rollouts = {"source": "recorded", "path": str(folder / "ragged32")}
    job = replay(model={"tie_embeddings": True}, steps=5, plan=plan, transitions=script, rollouts=rollouts)
    assert_equal(differences(run(job, folder / "tied"), train(job, folder / "ragged32")), record_property)
