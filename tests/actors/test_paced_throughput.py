"""Devices of a declared speed: more of them really train faster, on fewer cores than there are devices.

recorded rollouts -> one run, in which actor_training goes from dp 1 to 2, 4 and 8 -> tokens per second of each
"""

from __future__ import annotations

import os
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
STEPS_EACH = 4
"""Steps of each degree; the first one of a new layout warms up and doesn't count."""
LATE = 0.03
"""Share of the declared time above which a step was the host's rather than the devices': others had the cores."""
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


def on_time(paced: Run) -> dict[int, float]:
    """Seconds of training at each DP degree, the better of its warm steps that were on time.

    Eight devices of 0.15 of a core need 1.2 cores. Where others have them, a step takes as long as the host lets it and says
    nothing of the pacing: then there is nothing to assert. Late devices on a host with free cores are a fault, and fail.
    """
    found = {}
    for index, dp in enumerate(DEGREES):
        warm = paced.steps[index * STEPS_EACH + 1 : (index + 1) * STEPS_EACH]
        seconds = [step.stage_s[TRAINING] for step in warm if step.late_s < LATE * step.declared_s]
        if not seconds:
            late = min(step.late_s / step.declared_s for step in warm)
            # On an idle host lateness is a fault of the pacing, which the test must see.
            assert os.getloadavg()[0] > (os.cpu_count() or 1), f"dp {dp} is {late:.0%} late on an idle host"
            pytest.skip(f"others have the cores: at dp {dp} the devices were {late:.0%} late in every step")
        found[dp] = min(seconds)
    return found


def test_throughput_of_training_grows_with_the_number_of_replicas(
    paced: Run, record_property: Callable[[str, object], None]
) -> None:
    tokens = paced.job.global_batch * RESPONSE_TOKENS
    found = {dp: tokens / seconds for dp, seconds in on_time(paced).items()}
    record_property("tokens_per_second", found)
    for fewer, more in pairwise(DEGREES):
        assert found[more] > 1.15 * found[fewer], found
    assert found[8] > 2.5 * found[1], found
    assert found[8] < 8 * found[1], found


def test_every_step_is_paced(paced: Run, record_property: Callable[[str, object], None]) -> None:
    record_property("lateness", paced.summary.lateness)
    assert all(step.declared_s > 0 for step in paced.steps)


def test_paced_run_keeps_digests_and_samples(paced: Run) -> None:
    assert [t["digest_equal"] for t in paced.summary.transitions] == [True] * (len(DEGREES) - 1)
    assert (paced.summary.samples_repeated, paced.summary.samples_skipped) == (0, 0)


def test_quickstart_declares_the_speed_that_these_ratios_hold_for() -> None:
    assert yaml.safe_load(QUICKSTART.read_text())["cluster"]["device"]["speed"] == 0.15
