"""A job whose training goes from one replica to two, four and eight of declared speed, on recorded rollouts.

recorded rollouts -> one run of the quickstart's model, batch and devices -> the warm steps of each degree
"""

from __future__ import annotations

from pathlib import Path

from nereus.control.report import StepReport
from nereus.spec.loading import load_job
from tests.actors.jobs import GENERATION, REFERENCE, TRAINING, Run, make_job, run, stage
from tests.actors.uniform import record_uniform

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
DEGREES = (1, 2, 4, 8)
STEPS_EACH = 4
"""Steps of each degree; the first one of a new layout warms up and doesn't count."""
RESPONSE_TOKENS = 12


def run_paced(folder: Path) -> Run:
    """With memory for all of training on one device; only its layout changes."""
    quickstart = load_job(QUICKSTART)
    steps = STEPS_EACH * len(DEGREES)
    base = quickstart.model_dump(mode="json")
    job = make_job(
        base,
        name="paced",
        steps=steps,
        absent=[],
        availability=None,
        policy={"adapt": False},
        cluster={"device": {**base["cluster"]["device"], "memory": "64MiB"}},
        workload={"response_cap": [{"step": 1, "tokens": RESPONSE_TOKENS}]},
        plan={
            GENERATION: stage(1, 1, 8, "0-7", 32),
            REFERENCE: stage(1, 1, 8, "0-7", 32),
            TRAINING: stage(1, 1, DEGREES[0], "0", 32),
        },
        transitions=[
            {"step": index * STEPS_EACH, "stages": {TRAINING: stage(1, 1, dp, f"0-{dp - 1}", 32)}}
            for index, dp in enumerate(DEGREES)
            if index
        ],
        rollouts={"source": "recorded", "path": str(folder / "rollouts"), "record": None},
    )
    record_uniform(job, folder / "rollouts", lambda step, row: RESPONSE_TOKENS)
    return run(job, folder / "run")


def warm_steps(paced: Run, dp: int) -> list[StepReport]:
    """The steps of one degree that are not its first."""
    first = DEGREES.index(dp) * STEPS_EACH
    return paced.steps[first + 1 : first + STEPS_EACH]
