"""The quickstart as a person runs it, to its end: what `make run` shows, in the summary that it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from nereus.spec.loading import load_job
from tests.actors import journals
from tests.actors.equality import Record
from tests.actors.processes import Process, assert_nothing_left, descendants

pytestmark = [pytest.mark.ray, pytest.mark.timeout(480)]

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
STEPS = int(yaml.safe_load(QUICKSTART.read_text())["steps"])
MEMORY = 24 * 2**20
"""Bytes that each device declares."""

CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")
"""Where Ray notes the cluster that others of its commands on this machine connect to."""

KEYS = {
    "steps",
    "reward_first",
    "reward_last",
    "transitions",
    "rejected",
    "samples_seen",
    "samples_repeated",
    "samples_skipped",
    "peak_bytes",
    "lateness",
    "final_plan",
}
TRANSITION_KEYS = {
    "step",
    "primitives",
    "bytes_moved",
    "seconds",
    "digest_equal",
    "epoch",
    "trigger",
    "l_tran_predicted_s",
}
REJECTED_KEYS = {"reason", "delta_l_s", "l_tran_s", "horizon_steps"}


class Ended(NamedTuple):
    """What the command left."""

    code: int
    out: list[str]
    err: str
    folder: Path
    processes: set[Process]
    """All that it started."""


@pytest.fixture(scope="module")
def current_cluster() -> str | None:
    return CURRENT_CLUSTER.read_text() if CURRENT_CLUSTER.exists() else None


@pytest.fixture(scope="module")
def quickstart(current_cluster: str | None, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("quickstart")
    arguments = ["run", str(QUICKSTART), "--json", "--run-dir", str(folder / "runs")]
    started: set[Process] = set()
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        command = subprocess.Popen([sys.executable, "-m", "nereus", *arguments], cwd=ROOT, stdout=out, stderr=err)
    try:
        while command.poll() is None:
            started |= descendants(command.pid)
            time.sleep(1.0)
    finally:
        command.kill()
        command.wait()
    lines = (folder / "out").read_text().splitlines()
    return Ended(command.returncode, lines, (folder / "err").read_text(), next((folder / "runs").iterdir()), started)


@pytest.fixture(scope="module")
def summary(quickstart: Ended) -> dict[str, Any]:
    assert quickstart.code == 0, quickstart.err
    found: dict[str, Any] = json.loads(quickstart.out[-1])
    return found


def test_last_line_is_the_summary_and_the_only_one(quickstart: Ended, summary: dict[str, Any]) -> None:
    assert len(quickstart.out) == 1
    assert set(summary) >= KEYS
    assert json.loads((quickstart.folder / "summary.json").read_text()) == summary


def test_standard_error_is_empty(quickstart: Ended) -> None:
    assert quickstart.err == ""


def test_plan_changes_by_itself_with_all_four_primitives(summary: dict[str, Any]) -> None:
    used = {name for transition in summary["transitions"] for name, count in transition["primitives"].items() if count}
    assert used == {"Extend", "Destroy", "Merge", "Split"}


def test_pool_and_memory_are_among_the_triggers(summary: dict[str, Any]) -> None:
    reasons = [transition["trigger"] for transition in summary["transitions"]]
    assert any("which leave" in reason for reason in reasons)
    assert any("predicted to need" in reason for reason in reasons)


def test_every_transition_is_told_in_full_and_keeps_the_digest(summary: dict[str, Any]) -> None:
    for number, transition in enumerate(summary["transitions"], 1):
        assert set(transition) >= TRANSITION_KEYS
        assert transition["epoch"] == number
        assert transition["digest_equal"] is True
        assert 0 < transition["l_tran_predicted_s"] < 10
        assert 0 < transition["seconds"] < 30
        assert transition["trigger"]


def test_rejected_candidates_have_their_payback_figures(summary: dict[str, Any]) -> None:
    assert all(set(rejected) >= REJECTED_KEYS for rejected in summary["rejected"])
    codes = ("rejected_payback", "rejected_bound")
    unpaid = [rejected for rejected in summary["rejected"] if rejected["code"] in codes]
    assert unpaid
    for rejected in unpaid:
        assert rejected["delta_l_s"] > 0
        assert rejected["l_tran_s"] / rejected["delta_l_s"] > 0.5 * rejected["horizon_steps"]


def test_every_sample_is_used_once(summary: dict[str, Any]) -> None:
    assert summary["samples_seen"] == STEPS * 16
    assert (summary["samples_repeated"], summary["samples_skipped"]) == (0, 0)


def test_reward_starts_at_chance_and_rises_far_above(summary: dict[str, Any], record_property: Record) -> None:
    record_property("reward", (summary["reward_first"], summary["reward_last"]))
    assert summary["steps"] == STEPS
    assert 0.15 < summary["reward_first"] < 0.4
    assert summary["reward_last"] > summary["reward_first"] + 0.3


def test_peak_memory_stays_below_what_a_device_declares(summary: dict[str, Any]) -> None:
    assert load_job(QUICKSTART).cluster.device.memory == MEMORY
    peak = summary["peak_bytes"]
    assert 0 < peak["measured"] <= MEMORY
    assert 0 < peak["predicted"] <= 0.9 * MEMORY


def test_lateness_is_told(summary: dict[str, Any]) -> None:
    assert summary["lateness"] >= 0


def test_run_folder_holds_the_job_its_journal_and_every_event(quickstart: Ended, summary: dict[str, Any]) -> None:
    events = [json.loads(line) for line in (quickstart.folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    expected = [1, STEPS, len(summary["transitions"])]
    assert [kinds.count(kind) for kind in ("started", "step", "transition")] == expected
    assert (quickstart.folder / "job.yaml").read_text() == QUICKSTART.read_text()


def test_journal_replays_to_the_same_decisions_and_effects(quickstart: Ended) -> None:
    found = journals.replayed(load_job(QUICKSTART), quickstart.folder)
    events = [json.loads(line) for line in (quickstart.folder / "events.jsonl").read_text().splitlines()]
    decided = [
        (event["step"], event["cycle"], event["code"], event["reason"]) for event in events if event["event"] == "decision"
    ]
    assert found.first_difference is None
    assert [(d.step, d.cycle, str(d.verdict.code), d.verdict.reason) for d in found.decisions] == decided
    assert found.state.step == STEPS


def test_run_leaves_no_process_and_no_folder_behind(quickstart: Ended) -> None:
    assert_nothing_left(quickstart.processes)


def test_run_does_not_become_the_current_cluster_of_the_machine(quickstart: Ended, current_cluster: str | None) -> None:
    assert (CURRENT_CLUSTER.read_text() if CURRENT_CLUSTER.exists() else None) == current_cluster
