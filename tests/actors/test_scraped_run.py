"""A real Prometheus scrapes a real run with transitions: every panel of every dashboard has data, and no alert fires."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.api.served import ask
from tests.metrics.prometheus import PROMETHEUS, Prometheus, scraping
from tests.metrics.queries import shown
from tests.metrics.tools import found

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(480),
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH: Debian's package prometheus has it"),
]

ROOT = Path(__file__).parents[2]
STEPS = 26

TRACE = {0: 4, 2: 2, 6: 8, 22: 4, STEPS: 4}
"""Devices by completed steps: half of the plan's leave, then there are four times as many, then half of those leave. What
comes takes half a minute to start, which is a dozen steps of a machine that does nothing else."""

CHANGES: dict[str, Any] = {
    "steps": STEPS,
    "availability": "pool.csv",
    "policy": {"adapt": True, "micro_batches": [16, 32], "canary_steps": 2},
    "checkpoint": {"every_steps": 5},
}
"""To the quickstart: the pool above, transitions that are watched, and checkpoints."""

WITHOUT_FIGURES = {
    "nereus_canary_": "only transitions that pay are watched, and which ones do depends on how fast the machine is",
}
"""What need not have come about: it is there, and may be not a number."""


class Scraped(NamedTuple):
    """What the run left, and the server that has watched it."""

    code: int
    err: str
    summary: dict[str, Any]
    server: Prometheus
    began_s: float
    last_s: float
    """When the API was scraped for the last time."""
    metrics: bytes
    """One scrape, as it came."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    runs, out, err = folder / "runs", folder / "out", folder / "err"
    arguments = ["run", str(job_file(folder)), "--run-dir", str(runs)]
    with out.open("w") as to_out, err.open("w") as to_err:
        command = subprocess.Popen([sys.executable, "-m", "nereus", *arguments], cwd=ROOT, stdout=to_out, stderr=to_err)
    try:
        url = address(command, out)
        with scraping(url, folder / "prometheus") as server:
            began_s, metrics = time.time(), b""
            while command.poll() is None:
                metrics = looked_at(url) or metrics
                time.sleep(1.0)
            summary = json.loads(next(runs.glob("*/summary.json")).read_text())
            last_s = server.last_scrape_s(began_s, time.time())
            yield Scraped(command.returncode, err.read_text(), summary, server, began_s, last_s, metrics)
    finally:
        command.kill()
        command.wait()


def job_file(folder: Path) -> Path:
    """The quickstart with the changes."""
    job = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text(encoding="utf-8"))
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**job, **CHANGES}), encoding="utf-8")
    rows = "".join(f"{step},{count}\n" for step, count in TRACE.items())
    (folder / "pool.csv").write_text(f"time_s,available_gpus\n{rows}", encoding="utf-8")
    return path


def address(command: subprocess.Popen[bytes], out: Path) -> str:
    """Where the API is, as the run says it."""
    end = time.monotonic() + 120
    while not (told := re.search(r"API at (http://\S+?);", out.read_text())):
        assert command.poll() is None, out.read_text()
        assert time.monotonic() < end, "it says no address"
        time.sleep(0.2)
    return told.group(1)


def looked_at(url: str) -> bytes:
    """What a person looks at meanwhile, so that there are requests to count; empty once the API is gone."""
    try:
        for path in ("/api/v1/plan", "/api/v1/decisions", "/api/v1/steps/latest", "/nowhere"):
            ask(f"{url}{path}")
        return ask(f"{url}/metrics").text.encode()
    except OSError:
        return b""


def test_run_has_come_to_its_end_with_transitions(scraped: Scraped) -> None:
    assert scraped.code == 0, scraped.err
    assert scraped.summary["steps"] == STEPS
    assert scraped.summary["transitions"]


def test_every_query_of_every_panel_has_data(scraped: Scraped) -> None:
    """A figure that is a number, but for what the run does not do; a controller of several jobs is in test_controller."""
    queries = [query for query in shown() if not query.is_of_several_jobs]
    assert len(queries) > 70
    assert scraped.server.without_data(queries, scraped.began_s, scraped.last_s, WITHOUT_FIGURES) == []


def test_scraped_counters_are_those_of_the_summary(scraped: Scraped) -> None:
    """The last scrape is within a second of the last step; what came before it is all there."""
    server, summary = scraped.server, scraped.summary
    (steps,) = server.instant("nereus_steps_total", scraped.last_s)
    assert STEPS - 2 <= steps <= STEPS
    (transitions,) = server.instant("nereus_transitions_total", scraped.last_s)
    told = [t for t in summary["transitions"] if t["step"] <= steps - 1]
    assert len(told) <= transitions <= len(summary["transitions"])
    (moved,) = server.instant("nereus_transition_moved_bytes_total", scraped.last_s)
    assert moved == sum(t["bytes_moved"] for t in summary["transitions"][: int(transitions)])


def test_all_alerts_are_evaluated_and_none_fires_on_a_healthy_run(scraped: Scraped) -> None:
    rules = scraped.server.rules()
    assert len(rules) > 15
    assert {rule["health"] for rule in rules} == {"ok"}
    assert scraped.server.fired(scraped.began_s, scraped.last_s) == []


def test_promtool_finds_nothing_to_say_of_what_was_scraped(scraped: Scraped) -> None:
    promtool = found("promtool")
    assert promtool is not None
    assert b"nereus_transitions_total" in scraped.metrics
    ended = subprocess.run(
        [promtool, "check", "metrics"], input=scraped.metrics, capture_output=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
