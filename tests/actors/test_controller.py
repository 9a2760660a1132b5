"""A cluster of `ray start`: a head and raylets with a token. A job that follows its nodes, and a controller of several jobs.

ray job submit: the quickstart -> a job: a raylet dies, a node takes its leave -> nodes come, a controller: two jobs at once
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from nereus.control.events import BoundaryReached, EndpointDied, PoolChanged, StepLost
from nereus.policy.grants import Freed, Granted, Withdrawn
from nereus.policy.seating import PoolDevice
from tests.actors import journals
from tests.actors.clusters import cluster
from tests.actors.story import Story, api_of, at, holdings, recorded, tell

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
"""For a machine that does other work beside."""


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    told = Story()
    with cluster(2, 4, 4) as ray:
        tell(ray, told)
        yield told


# The job that is submitted


def test_quickstart_runs_to_its_end_as_a_ray_job_on_a_cluster_with_a_token(story: Story) -> None:
    submitted = story.submitted
    assert submitted is not None
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    summary = json.loads(next(line for line in submitted.stdout.splitlines() if line.startswith("{")))
    assert summary["steps"] == 4


def test_wheel_travels_with_a_job_and_is_what_its_workers_import(story: Story) -> None:
    assert story.submitted is not None
    (line,) = [line for line in story.submitted.stdout.splitlines() if line.startswith("IN A WORKER")]
    assert line.count("py_modules") == 2, line


# The jobs that follow their nodes


def test_a_run_goes_on_from_intact_units_when_a_raylet_is_killed(story: Story) -> None:
    code, folder = story.followers["survivor"]
    assert code == 0
    events, summary = journals.events(folder), json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 8
    assert (summary["samples_repeated"], summary["samples_skipped"], summary["restored"]) == (0, 0, [])
    assert [event for event in events if isinstance(event, EndpointDied | StepLost)]
    gone = [event for event in events if isinstance(event, PoolChanged) and event.gone]
    assert set(gone[0].gone) >= {2, 3}, "the devices that were on the dead node"
    assert summary["transitions"]
    assert all(t["digest_equal"] for t in summary["transitions"])


def test_devices_of_another_node_take_the_place_of_those_that_are_gone(story: Story) -> None:
    changes = [event for event in journals.events(story.followers["survivor"][1]) if isinstance(event, PoolChanged)]
    gone = next(at for at, event in enumerate(changes) if event.gone)
    assert {place for event in changes[gone + 1 :] for place in event.arriving} >= {2, 3}


def test_a_node_that_takes_its_leave_is_left_in_time_and_free_before_it_goes(story: Story) -> None:
    assert story.left is not None
    assert story.left.returncode == 0, story.left.stderr
    assert "its devices are free" in story.left.stdout
    code, folder = story.followers["mover"]
    assert code == 0
    told = [event for event in journals.events(folder) if isinstance(event, PoolChanged)]
    noticed = next(event for event in told if event.leaving)
    assert set(noticed.leaving) >= {2, 3}, "those of the plan"
    assert {place for event in told[told.index(noticed) :] for place in event.gone} >= {2, 3}
    summary = json.loads((folder / "summary.json").read_text())
    assert [t["trigger"] for t in summary["transitions"] if "which leave" in t["trigger"]]
    assert summary["steps"] == 24
    assert summary["restored"] == []
    assert {device for plan in summary["final_plan"].values() for device in plan["devices"]} <= {0, 1}


# The controller


def test_a_controller_that_a_ray_job_has_started_outlives_it_and_is_not_started_twice(story: Story) -> None:
    first, again = story.started
    assert "started; API at http://127.0.0.1:" in first
    assert "it runs already; API at http://127.0.0.1:" in again
    assert api_of(first) == api_of(again)


def test_two_jobs_run_at_once_and_go_on_through_the_death_of_their_controller(story: Story) -> None:
    states = [{job: view["state"] for job, view in views.items()} for views in story.views()]
    assert any(state.get("first") == state.get("second") == "running" for state in states)
    assert story.last("second")["state"] == "finished"
    code, out = story.watched
    assert code == 0, out
    summary = json.loads(out.splitlines()[-1])
    assert (summary["steps"], summary["samples_repeated"], summary["samples_skipped"]) == (8, 0, 0)
    for job in ("first", "second"):
        told = journals.timed(Path(story.last(job)["folder"]))
        steps = [(at_s, event.report.step) for at_s, event in told if isinstance(event, BoundaryReached)]
        assert [step for _, step in steps] == list(range(1, len(steps) + 1)), job
        assert steps[-1][0] > story.killed_s, job


def test_a_job_that_finds_no_room_waits_with_the_reason_and_ends_with_whoever_watched_it(story: Story) -> None:
    waiting = [views["huge"]["reason"] for views in story.views() if "huge" in views and views["huge"]["state"] == "queued"]
    assert any("it needs 8 devices to start; the cluster has 6" in reason for reason in waiting)
    assert story.interrupted == 130
    assert story.last("huge")["state"] == "cancelled"


def test_a_job_is_cancelled_by_the_command_once_and_a_name_that_is_none_is_refused(story: Story) -> None:
    first, again, unknown = (story.cancelled[which] for which in ("first", "again", "nobody"))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert "first: it ends" in first.stdout
    assert "first: it was cancelled already" in again.stdout
    assert story.last("first")["state"] == "cancelled"
    assert story.last("first")["reason"] == "cancelled by an operator"
    assert unknown.returncode == 2
    assert "'nobody' is no job of the controller, whose jobs are: first, " in unknown.stderr


def test_prometheus_that_scrapes_the_controller_has_data_for_its_panels_and_no_alert_fires(story: Story) -> None:
    if story.scraped is None:
        pytest.skip("no prometheus on PATH: Debian's package prometheus has it")
    assert story.scraped.without_data == []
    assert story.scraped.num_queries == 3
    assert story.scraped.most_running == 2
    assert story.scraped.fired == []


def test_a_job_that_ends_or_comes_changes_what_the_others_have(story: Story) -> None:
    """By the records: which of its moments a status shows depends on how fast the machine is."""
    records = [record for _, record in recorded(story)]
    withdrawn = next(r for r in records if isinstance(r, Withdrawn) and r.job == "first")
    freed = next(r for r in records if isinstance(r, Freed) and r.job == "first")
    assert set(freed.places) <= set(withdrawn.places)
    since = records[records.index(freed) :]
    assert [r for r in since if isinstance(r, Granted) and r.job == "second"], "it starts on what the first has left"
    assert [r for r in since if isinstance(r, Granted) and r.job == "first"], "and gives it back, by its end at the latest"


def test_no_device_is_ever_with_two_jobs_by_the_journals_of_both(story: Story) -> None:
    held = sorted((seat, since, until, job) for job in ("first", "second") for seat, since, until in holdings(story, job))
    assert len(held) >= 4
    for (seat, _, ended, job), (other, began, _, another) in pairwise(held):
        assert seat != other or ended <= began, f"{seat}: {job} to {ended}, {another} from {began}"


def test_no_device_is_ever_with_two_jobs_by_rays_own_list_of_workers(story: Story) -> None:
    assert len(story.samples) > 50
    seen = set()
    for sample in story.samples:
        grants = at(story, sample["at_s"])
        devices: dict[PoolDevice, str] = {}
        for name, node in sample["workers"]:
            run, _, endpoint = name.partition("/")
            job = run.rpartition("-")[0].rpartition("-")[0]
            seat = grants.claims[job].seats.get(int(endpoint.removeprefix("d").partition(".")[0]))
            if seat is None:
                continue  # it has left it, or is over, and its process is ending
            assert seat.node == node
            assert devices.setdefault(seat, job) == job, f"{seat} at {sample['at_s']}"
            seen.add(job)
        by_node: dict[str, int] = {}
        for _, node in sample["workers"]:
            by_node[node] = by_node.get(node, 0) + 1
        assert max(by_node.values(), default=0) <= 2
    assert seen == {"first", "second"}


def test_a_stopped_controller_leaves_nothing(story: Story) -> None:
    assert "stopped" in story.stopped
    assert story.leftover == []
