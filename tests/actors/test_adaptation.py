"""A job that changes its parallelism by itself trains as a single process does, and can be watched while it runs.

uniform rollouts, a pool of 4, 2 and again 4 devices, 6 MiB each -> one run -> { training, HTTP, journal, processes }
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from actors.launch import Launched
from nereus.control.effects import Decision, DevicesChanged, News
from nereus.control.report import StepReport
from nereus.runtime.projection import Projection
from tests.actors import journals
from tests.actors.equality import Record, assert_equal, differences
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, Run, make_job, run, stage
from tests.actors.processes import Process, assert_nothing_left, descendants, wait_until
from tests.actors.uniform import record_uniform
from tests.api.served import Reply, ask
from tests.reference import train

pytestmark = pytest.mark.ray

STEPS = 20

TRACE = {0: 4, 2: 2, 5: 4, STEPS: 4}
"""Devices by completed steps: two get their notice after step 2 and are gone after step 4; two come after step 5, and are
ready some seconds later."""

ADAPTIVE: dict[str, Any] = {
    **TINY,
    "name": "adaptive",
    "steps": STEPS,
    "cluster": {"nodes": 2, "devices_per_node": 2, "device": {"memory": "6MiB", "speed": 0.1}},
    "plan": {
        GENERATION: stage(1, 1, 4, "0-3", 4),
        REFERENCE: stage(1, 1, 4, "0-3", 4),
        TRAINING: stage(2, 1, 2, "0-3", 2),
    },
    "policy": {"adapt": True, "micro_batches": [1, 2, 4]},
}
"""Memory is tight for what 2 devices hold of responses that grow from 6 to 40 tokens."""

CURRICULUM = [{"step": 1, "tokens": 6}, {"step": STEPS, "tokens": 40}]

LOOKS_AFTER = 18
"""Steps after which the API is asked: late enough for decisions, and the job still runs."""


@dataclass
class Looks:
    """What a client saw while the job ran."""

    replies: dict[str, Reply] = field(default_factory=dict)
    replan: Any = None
    processes: set[Process] = field(default_factory=set)

    def look(self, launch: Launched, news: News) -> None:
        """Ask the API once, after some steps."""
        if not isinstance(news, StepReport) or news.step != LOOKS_AFTER:
            return
        assert launch.api_url is not None
        url = launch.api_url
        self.processes = descendants(os.getpid())
        body, headers = json.dumps({"dry_run": True}).encode(), {"Content-Type": "application/json"}
        posted = ask(f"{url}/api/v1/replans", data=body, headers=headers)
        self.replies["replans"] = posted
        where = url + posted.headers["Location"]
        wait_until(lambda: ask(where).body["state"] == "decided", 30)
        self.replan = ask(where).body
        paths = ("/api/v1/plan", "/api/v1/decisions", "/api/v1/transitions", "/api/v1/devices", "/metrics", "/readyz")
        self.replies |= {path: ask(url + path) for path in paths}
        self.replies["/api/v1/steps/latest"] = ask(f"{url}/api/v1/steps/latest")


@dataclass(frozen=True)
class Adapted:
    """The run, and what was seen of it."""

    run: Run
    rollouts: Path
    looks: Looks
    api_url: str


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    folder, looks, urls = tmp_path_factory.mktemp("adapted"), Looks(), set[str]()
    (folder / "pool.csv").write_text("time_s,available_gpus\n" + "".join(f"{t},{n}\n" for t, n in TRACE.items()))
    job = make_job(
        ADAPTIVE,
        workload={"response_cap": CURRICULUM},
        availability=str(folder / "pool.csv"),
        rollouts={"source": "recorded", "path": str(folder / "rollouts")},
    )
    record_uniform(job, folder / "rollouts", lambda step, row: job.workload.cap_at(step) - (3 * row + step) % 5)

    def look(launch: Launched, news: News) -> None:
        assert launch.api_url is not None
        urls.add(launch.api_url)
        looks.look(launch, news)

    found = run(job, folder / "run", look)
    return Adapted(found, folder / "rollouts", looks, *urls)


def test_adapted_training_equals_the_single_process(adapted: Adapted, record_property: Record) -> None:
    assert_equal(differences(adapted.run, train(adapted.run.job, adapted.rollouts)), record_property)


def test_controller_changed_the_plan_and_every_digest_is_equal(adapted: Adapted) -> None:
    transitions = adapted.run.summary.transitions
    assert transitions
    assert all(t["digest_equal"] for t in transitions)
    assert any("which leave" in t["trigger"] for t in transitions)
    assert all(t["l_tran_predicted_s"] > 0 for t in transitions)
    assert [t["epoch"] for t in transitions] == list(range(1, len(transitions) + 1))


def test_pool_follows_the_trace_and_no_step_runs_on_a_device_that_is_gone(adapted: Adapted) -> None:
    pools = [set(news.ready) - set(news.leaving) for news in adapted.run.events if isinstance(news, DevicesChanged)]
    assert {0, 1} in pools
    assert pools[-1] == {0, 1, 2, 3}
    endpoints = [set(step.peak_bytes) for step in adapted.run.steps]
    assert not {"d2.0", "d3.0"} & set().union(*endpoints[4:])
    reborn = {e for news in adapted.run.events if isinstance(news, DevicesChanged) for e in news.ready.values()}
    assert reborn == {"d0.0", "d1.0", "d2.0", "d3.0", "d2.1", "d3.1"}


def test_steps_and_samples_are_complete(adapted: Adapted) -> None:
    summary = adapted.run.summary
    assert [step.step for step in adapted.run.steps] == list(range(1, STEPS + 1))
    assert summary.samples_seen == STEPS * 4
    assert (summary.samples_repeated, summary.samples_skipped) == (0, 0)


def test_decisions_say_what_they_saw_and_what_they_rest_on(adapted: Adapted) -> None:
    decisions = [news for news in adapted.run.events if isinstance(news, Decision)]
    assert any(d.verdict.is_admitted for d in decisions)
    meant = [d for d in decisions if not d.is_dry_run]
    assert len(adapted.run.summary.rejected) == sum(not d.verdict.is_admitted for d in meant)
    assert all(d.triggers and d.verdict.reason for d in decisions)


def test_measured_memory_stays_within_a_device(adapted: Adapted) -> None:
    assert 0 < adapted.run.summary.peak_bytes["measured"] <= 6 * 2**20


def test_journal_replays_to_the_same_decisions_and_effects(adapted: Adapted) -> None:
    journals.assert_replays(adapted.run)


def test_api_told_the_same_as_the_run_while_it_ran(adapted: Adapted) -> None:
    replies = adapted.looks.replies
    assert {path: reply.status for path, reply in replies.items()} == dict.fromkeys(replies, 200) | {"replans": 202}
    told = Projection()
    for news in adapted.run.events:
        told.fold(news)
    shown, decided = (replies[f"/api/v1/{name}"].body["items"] for name in ("transitions", "decisions"))
    assert shown == told.transitions(None, 200)[-len(shown) :]
    assert decided == told.decisions(None, 200)[-len(decided) :]
    assert len(decided) > len(adapted.looks.replan["decisions"])
    plan = replies["/api/v1/plan"].body
    assert plan["epoch"] == shown[0]["epoch"]
    assert plan["stages"] == shown[0]["stages"]
    assert {item["device"] for item in replies["/api/v1/devices"].body["items"]} == {0, 1, 2, 3}
    assert replies["/api/v1/steps/latest"].body["step"] >= LOOKS_AFTER
    (counted,) = re.findall(r"^nereus_steps_total{.*} (\d+)", replies["/metrics"].text, re.MULTILINE)
    assert int(counted) >= LOOKS_AFTER


def test_dry_run_of_an_operator_is_decided_and_changes_nothing(adapted: Adapted) -> None:
    replan = adapted.looks.replan
    assert replan["dry_run"] is True
    assert replan["state"] == "decided"
    assert replan["decisions"]
    assert all("an operator asked" in decision["triggers"] for decision in replan["decisions"])
    assert not [t for t in adapted.run.summary.transitions if "operator" in t["trigger"]]


def test_nothing_is_left_and_the_port_is_free(adapted: Adapted) -> None:
    assert_nothing_left(adapted.looks.processes)
    address = urlsplit(adapted.api_url)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.hostname, address.port))
