"""Devices of a declared speed: none is faster than it declares, and replicas share the work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from nereus.rl.pacing import SHORTEST_SLEEP_S
from tests.actors.jobs import REFERENCE, TRAINING, Run
from tests.actors.paced import DEGREES, QUICKSTART, run_paced, warm_steps

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_paced(tmp_path_factory.mktemp("paced"))


def test_no_stage_is_faster_than_its_devices_may_be(paced: Run) -> None:
    """Each stage takes as long as the slowest of its devices declares, hence no less than the mean of them."""
    for dp in DEGREES:
        for step in warm_steps(paced, dp):
            devices_s = 8 * step.stage_s[REFERENCE] + dp * step.stage_s[TRAINING]
            assert devices_s >= step.declared_s - 8 * SHORTEST_SLEEP_S > 0, (dp, step)


def test_replicas_share_the_work(paced: Run, record_property: Callable[[str, object], None]) -> None:
    """Eight replicas together compute about what one did, so that each takes a fraction of its time.

    By the devices' own clocks: how the wall clock follows them is measured by `benchmarks.pacing`.
    """
    declared = {dp: min(step.declared_s for step in warm_steps(paced, dp)) for dp in DEGREES}
    record_property("declared_s", declared)
    assert max(declared.values()) < 2 * declared[1], declared


def test_paced_run_keeps_digests_and_samples(paced: Run) -> None:
    assert [t["digest_equal"] for t in paced.summary.transitions] == [True] * (len(DEGREES) - 1)
    assert (paced.summary.samples_repeated, paced.summary.samples_skipped) == (0, 0)


def test_quickstart_declares_the_speed_that_this_holds_for() -> None:
    assert yaml.safe_load(QUICKSTART.read_text())["cluster"]["device"]["speed"] == 0.15
