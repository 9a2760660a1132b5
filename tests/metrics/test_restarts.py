"""Counters survive: whoever restarts, what is told of a job is the same function of its journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nereus.control.effects import Decision, TransitionRecord
from tests.api.served import JOB, FakeController, ask, served, wait_for
from tests.metrics.test_metrics import Series, of_projection, scraped
from tests.runtime.loop import POOL, Loop, adaptive_config
from tests.runtime.world import World

OF_PROCESS = ("nereus_api_", "nereus_job_controller_losses")
"""What is counted from the start of the process that is scraped."""


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    """Three steps of a job that goes from four devices to eight and to six."""
    found = Loop(World(adaptive_config(), holds_values=False), tmp_path / "journal.sqlite", pool=POOL)
    found.run(3)
    yield found
    found.close()


def of_job(series: Series) -> Series:
    return {key: value for key, value in series.items() if not key[0].startswith(OF_PROCESS) and value == value}


def test_controller_that_comes_back_from_its_journal_tells_the_same_metrics(loop: Loop) -> None:
    before = of_job(of_projection(*loop.news))
    assert any(isinstance(news, TransitionRecord) for news in loop.news)
    assert any(isinstance(news, Decision) for news in loop.news)
    told = loop.news
    loop.restart()
    assert loop.news is not told
    assert of_job(of_projection(*loop.news)) == before
    assert before["nereus_steps_total", (("nereus_job", JOB),)] == 3


def test_counters_go_on_where_they_were_after_a_restart(loop: Loop) -> None:
    before = of_job(of_projection(*loop.news))
    loop.restart()
    loop.ask_again()
    for step in (4, 5, 6):
        loop.boundary(step)
    after = of_job(of_projection(*loop.news))
    assert after["nereus_steps_total", (("nereus_job", JOB),)] == 6
    fallen = {key for key, value in before.items() if key[0].endswith(("_total", "_count")) and after[key] < value}
    assert fallen == set()


def test_api_that_watched_the_restart_and_one_that_begins_after_it_tell_the_same(loop: Loop) -> None:
    controller = FakeController(loop.news)
    with served(controller) as watched:
        controller.is_gone = True
        wait_for(lambda: "nereus_controller_up 0.0" in watched.get("/metrics").text)
        loop.restart()
        controller.news[:] = loop.news
        controller.is_gone = False
        wait_for(lambda: "nereus_controller_up 1.0" in watched.get("/metrics").text)
        with served(FakeController(loop.news)) as begun:
            first, second = (scraped(ask(f"{api.url}/metrics").text) for api in (watched, begun))
    assert of_job(first) == of_job(second)
    losses = "nereus_job_controller_losses_total", (("nereus_job", JOB),)
    assert (first[losses], second[losses]) == (1, 0)
