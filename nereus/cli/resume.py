"""`nereus run JOB --resume`: the checkpoint that a run goes on from, read whole and checked before anything starts."""

from __future__ import annotations

import time
from pathlib import Path

from nereus.control.checkpoint import Checkpoint
from nereus.errors import UserError
from nereus.rl.describe import describe
from nereus.rl.ledger import SampleLedger
from nereus.runtime.checkpoints import load, newest, verify
from nereus.runtime.index import checkpoint_of, saved_catalog
from nereus.spec.job import Job


def checkpoint_to_resume(job: Job, where: Path) -> Checkpoint:
    """The newest checkpoint at a path: one itself, a folder of them, or the folder of a run.

    Raises UserError if there is none, if it is damaged, or if it is of another model, seed or data, or behind the job's end.
    """
    path, began = newest(where).absolute(), time.perf_counter()
    num_bytes, index = verify(path), load(path)
    if index.step >= job.steps:
        raise UserError(
            f"steps: the checkpoint {path} is of step {index.step}, and the job ends after {job.steps}; raise it"
        )
    for stage, state in describe(job).states.items():
        saved_catalog(stage, state, index)
    SampleLedger(job.task.num_prompts, job.seed).restore(index.loop["ledger"])
    return checkpoint_of(str(path), index, num_bytes, time.perf_counter() - began)
