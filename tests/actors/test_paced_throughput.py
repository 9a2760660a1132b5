"""Devices of a declared speed: more of them really train faster, on fewer cores than there are devices.

recorded rollouts -> one run, in which actor_training goes from dp 1 to 2, 4 and 8 -> tokens per second of each
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from nereus.spec.loading import load_job
from tests.actors.jobs import GENERATION, REFERENCE, TRAINING, Run, make_job, run, stage
from tests.actors.uniform import record_uniform

pytestmark = pytest.mark.ray

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
DEGREES = (1, 2, 4, 8)
STEPS_EACH = 3
"""Steps of each degree; the first one of a new layout warms up and doesn't count."""
RESPONSE_TOKENS = 12


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The quickstart's model, batch and devices, with memory for all of training on one; only its layout changes."""
    folder = tmp_path_factory.mktemp("paced")
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


def throughput(paced: Run) -> dict[int, float]:
    """Response tokens per second of the training stage at each DP degree, the better of its warm steps."""
    tokens = paced.job.global_batch * RESPONSE_TOKENS
    found = {}
    for index, dp in enumerate(DEGREES):
        warm = paced.steps[index * STEPS_EACH + 1 : (index + 1) * STEPS_EACH]
        found[dp] = tokens / min(step.stage_s[TRAINING] for step in warm)
    return found


def test_throughput_of_training_grows_with_the_number_of_replicas(
    paced: Run, record_property: Callable[[str, object], None]
) -> None:
    found = throughput(paced)
    record_property("tokens_per_second", found)
    for fewer, more in pairwise(DEGREES):
        assert found[more] > 1.15 * found[fewer], found
    assert found[8] > 2.5 * found[1], found
    assert found[8] < 8 * found[1], found


def test_devices_are_hardly_ever_late(paced: Run, record_property: Callable[[str, object], None]) -> None:
    record_property("lateness", paced.summary.lateness)
    assert all(step.declared_s > 0 for step in paced.steps)
    assert paced.summary.lateness < 0.03


def test_paced_run_keeps_digests_and_samples(paced: Run) -> None:
    assert [t["digest_equal"] for t in paced.summary.transitions] == [True] * (len(DEGREES) - 1)
    assert (paced.summary.samples_repeated, paced.summary.samples_skipped) == (0, 0)


def test_quickstart_declares_the_speed_that_these_ratios_hold_for() -> None:
    assert yaml.safe_load(QUICKSTART.read_text())["cluster"]["device"]["speed"] == 0.15
