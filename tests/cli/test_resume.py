"""`--resume` refuses what the job cannot go on from, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nereus.cli.app import app
from nereus.cli.resume import checkpoint_to_resume
from nereus.control.checkpoint import Checkpoint
from nereus.errors import UserError
from nereus.rl.describe import describe
from nereus.rl.ledger import SampleLedger
from nereus.runtime.checkpoints import partial_folder, seal
from nereus.spec.checkpoint import Index, SavedTensor
from nereus.spec.job import Job
from nereus.spec.loading import load_job
from tests.runtime.loop import QUICKSTART


def job(**changes: Any) -> Job:
    return load_job(QUICKSTART).model_copy(update=changes)


def saved(root: Path, step: int = 3, seed: int | None = None) -> Path:
    """A checkpoint of the quickstart after a step, with every tensor named and no box; the state is not read here."""
    declared = job()
    ledger = SampleLedger(declared.task.num_prompts, declared.seed if seed is None else seed)
    stages = {
        stage: tuple(
            SavedTensor(name=t.name, kind=str(t.kind), dtype=t.dtype, shape=t.shape, digest=(1, 2), boxes=())
            for t in state.tensors
        )
        for stage, state in describe(declared).states.items()
    }
    loop = {"step": step, "updates": step, "used": [], "ledger": ledger.state()}
    partial_folder(root, "run", "s1").mkdir(parents=True)
    return seal(root, Index(job="j", run="run", tag="s1", step=step, loop=loop, stages=stages), [], keep=1)


def test_checkpoint_is_found_checked_and_has_its_digests(tmp_path: Path) -> None:
    path = saved(tmp_path / "checkpoints")
    found = checkpoint_to_resume(job(), tmp_path)
    assert isinstance(found, Checkpoint)
    assert (found.folder, found.step, found.name) == (str(path), 3, path.name)
    assert set(found.proof) == set(describe(job()).states)
    assert {sums for digest in found.proof.values() for sums in digest.values()} == {(1, 2)}
    assert found.seconds > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 3}, "steps: .* is of step 3, and the job ends after 3; raise it"),
        ({"seed": 99}, "seed: the run started with"),
        ({"dtype": "float64"}, "resume with the model and dtype of the run that wrote it"),
    ],
)
def test_job_that_cannot_go_on_from_it_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    saved(tmp_path)
    with pytest.raises(UserError, match=message):
        checkpoint_to_resume(job(**changes), tmp_path)


def test_command_says_that_there_is_no_checkpoint_and_starts_nothing(tmp_path: Path) -> None:
    arguments = ["run", str(QUICKSTART), "--resume", str(tmp_path), "--run-dir", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert "no finished checkpoint" in str(result.exception) + result.output
    assert not (tmp_path / "runs").exists()
