"""Where measured data lies: tests that read it are skipped on a machine that has none.

Write `--data=DIR` with the equals sign: pytest takes a separate DIR for a test path before it reads this file.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
"""Machines are shared: no example may fail because another program had the core."""

DEFAULT = Path(__file__).parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--data", metavar="DIR", type=Path, default=DEFAULT, help="folder of measured data; default ../shared/data"
    )


@pytest.fixture(scope="session")
def data_dir(request: pytest.FixtureRequest) -> Path:
    """The folder of measured data; skips the test where there is none."""
    folder: Path = request.config.getoption("--data")
    if not folder.is_dir():
        pytest.skip(f"no measured data in {folder}; --data=DIR names the folder")
    return folder


THOROUGH = (
    "layout/test_moves.py",
    "layout/test_shares.py",
    "layout/test_sources.py",
    "layout/test_hf_published.py",
    "emu/test_any_sequence.py",
    "transition/",
    "planner/test_search.py",
    "planner/test_candidates.py",
    "planner/test_fewest_devices.py",
    "planner/test_mixed_kinds.py",
    "planner/test_offloaded_plans.py",
    "planner/test_offloading_search.py",
    "planner/test_outline_properties.py",
    "planner/test_pinned_plans.py",
    "planner/test_search_thoroughly.py",
    "policy/test_grants_machine.py",
    "policy/test_proposal.py",
    "policy/test_sharing.py",
    "policy/test_placement.py",
    "integrations/test_exports.py",
    "cost/test_memory_prediction.py",
    "cost/test_published_training.py",
    "cost/test_rates.py",
    "control/test_machine.py",
    "monitor/test_inventory.py",
    "runtime/test_checkpoints.py",
    "runtime/test_cluster_machine.py",
    "runtime/test_driver.py",
    "runtime/test_early_ends.py",
    "runtime/test_estimate_benchmark.py",
    "runtime/test_first_light.py",
    "runtime/test_journal.py",
    "runtime/test_replay.py",
    "sim/test_outcome.py",
    "sim/test_saved_state.py",
    "sim/test_report.py",
    "sim/test_published_figures.py",
    "api/",
    "metrics/test_alerts.py",
    "metrics/test_restarts.py",
    "cli/",
    "deploy/",
    "helm/",
    "planner/test_exact_search.py",
    "planner/test_explain.py",
    "planner/test_value.py",
    "planner/test_probes.py",
    "planner/test_outline_pricing.py",
    "planner/test_prices.py",
    "planner/test_quanta.py",
    "planner/test_expert_plans.py",
    "planner/test_calibration.py",
    "planner/test_simplifications.py",
    "planner/test_outlined.py",
    "integrations/test_openrlhf_flags.py",
    "integrations/test_verl_overrides.py",
    "integrations/test_nemo_rl_overrides.py",
    "sim/test_oracle.py",
    "sim/test_step_noise.py",
    "spec/test_job_file_refused.py",
)
"""Tests that search, replay or serve for more than a few seconds: `make test` runs them, `make check` does not."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the thorough tests by where they are."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).as_posix().startswith(THOROUGH):
            item.add_marker("thorough")
