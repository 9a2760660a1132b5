"""What a controller launches, and once only. No Ray is started: actors are names that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import actors.controller
from actors.controller import LOCK_FILE, RECORDS_FILE, Controller, ControllerSpec
from actors.runner import RunnerSpec
from actors.runners import Runners, runner_name
from actors.submission import Submission
from nereus.errors import NereusError, UserError
from nereus.policy.grants import Claim, Ended, Granted, Grants, Launched, NodesSeen, after
from nereus.policy.seating import Node, PoolDevice
from nereus.runtime.locking import held
from nereus.spec.loading import parse_job
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, stage

NODES = (Node(id="a", devices=2),)


class Handle:
    """Of an actor, or a thread, that does nothing whatever it is asked."""

    def __getattr__(self, _: str) -> Handle:
        return self

    def __call__(self, *_: Any, **__: Any) -> Handle:
        return self


class FakeRay:
    """The actors that were started, and what each runner was told."""

    def __init__(self) -> None:
        self.actors: set[str] = set()
        self.told: list[RunnerSpec] = []

    def get_actor(self, name: str) -> Handle:
        if name not in self.actors:
            raise ValueError(f"no actor {name!r}")
        return Handle()

    def remote(self, *, name: str, **_: Any) -> Callable[[type[Any]], Any]:
        ray = self

        class Made(Handle):
            def remote(self, *args: Any) -> Handle:
                ray.actors.add(name)
                ray.told += [spec for spec in args if isinstance(spec, RunnerSpec)]
                return self

        return lambda _: Made()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr("ray.get_actor", fake.get_actor)
    monkeypatch.setattr("ray.remote", fake.remote)
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: None)
    return fake


def spec_of(folder: Path) -> ControllerSpec:
    return ControllerSpec(folder=folder, host="127.0.0.1", port=0, token_file=None, min_devices=0, max_devices=None)


@pytest.fixture
def controller(ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    """One that looks when it is told to."""
    monkeypatch.setattr(actors.controller, "Thread", lambda **_: Handle())
    monkeypatch.setattr(actors.controller, "devices_of", lambda _: NODES)
    made = Controller(spec_of(tmp_path))
    yield made
    closed(made)


def submission(name: str) -> Submission:
    """A job of one device."""
    cluster = {"nodes": 1, "devices_per_node": 1, "device": {"memory": "256MiB"}}
    plan = {name: stage(1, 1, 1, "0") for name in (GENERATION, REFERENCE, TRAINING)}
    return Submission(parse_job({**TINY, "name": name, "cluster": cluster, "plan": plan}), "20260101-000000")


def granted(*jobs: str) -> Grants:
    """Each has a device, and was not launched."""
    grants = after(Grants(), [NodesSeen(resource="nereus_device", nodes=NODES)])
    for at, job in enumerate(jobs):
        grants = after(grants, [submission(job).record(job), Granted(job=job, seats={0: PoolDevice("a", at)})])
    return grants


def claim_of(grants: Grants, job: str) -> Claim:
    return grants.claims[job]


def test_a_runner_that_was_started_and_not_recorded_has_begun(ray: FakeRay, tmp_path: Path) -> None:
    """The controller died between the two."""
    runners, grants = Runners(tmp_path), granted("one", "two")
    assert runners.begun(grants) == []
    ray.actors.add(runner_name("two"))
    assert runners.begun(grants) == [Launched(job="two")]
    assert runners.begun(after(grants, [Launched(job="two")])) == []
    assert runners.begun(after(grants, [Ended(job="two", state="cancelled", reason="")])) == []


def test_a_job_is_launched_on_its_devices_in_its_folder(ray: FakeRay, tmp_path: Path) -> None:
    assert Runners(tmp_path).launch(claim_of(granted("one"), "one")) == Launched(job="one")
    (spec,) = ray.told
    assert spec.folder == tmp_path / "runs" / "one-20260101-000000"
    assert spec.folder.is_dir()
    assert spec.footing.seats == {0: PoolDevice("a", 0)}


def test_a_job_whose_folder_cannot_be_made_has_failed_and_nothing_of_it_is_started(ray: FakeRay, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    ended = Runners(tmp_path).launch(claim_of(granted("one"), "one"))
    assert isinstance(ended, Ended)
    assert (ended.job, ended.state) == ("one", "failed")
    assert ended.reason.startswith("its folder cannot be made on the head node: ")
    assert ray.actors == set()


def test_a_job_that_cannot_be_launched_holds_up_no_other(ray: FakeRay, tmp_path: Path, controller: Controller) -> None:
    for job in ("bad", "good"):
        controller.submit(submission(job))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "bad-20260101-000000").write_text("a file")
    controller._look()
    states = {job["job"]: job["state"] for job in controller.status()["jobs"]}
    assert states == {"bad": "failed", "good": "starting"}
    assert ray.actors == {runner_name("good")}
    assert controller.standing().jobs == {"failed": 1, "starting": 1}
    assert set(controller.standing().heads) == {"good"}


def test_a_second_controller_of_a_folder_says_so_when_it_is_started(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.controller, "PATIENCE_S", 0.0)
    monkeypatch.setattr(actors.controller, "Thread", lambda **_: Handle())
    with held(tmp_path / LOCK_FILE):
        second = Controller(spec_of(tmp_path))
        with pytest.raises(ValueError, match=f"--folder: {tmp_path} cannot hold .* another controller .* give another"):
            second.start()
        assert ray.actors == set()
        with pytest.raises(UserError):
            second.granted("a")
        with pytest.raises(UserError):
            second.submit(submission("one"))
        with pytest.raises(UserError):
            second._look()
    second._look()
    assert second.submit(submission("one")) == "one", "it has its records with the first look at which they are free"
    closed(second)


def test_a_controller_that_reads_its_records_late_has_what_it_knew(tmp_path: Path, controller: Controller) -> None:
    controller.submit(submission("one"))
    closed(controller)
    (tmp_path / RECORDS_FILE).rename(tmp_path / "away")
    (tmp_path / RECORDS_FILE).mkdir()
    second = Controller(spec_of(tmp_path))
    with pytest.raises(UserError, match="unable to open database file"):
        second.cancel("one", "")
    (tmp_path / RECORDS_FILE).rmdir()
    (tmp_path / "away").rename(tmp_path / RECORDS_FILE)
    second._look()
    assert [(job["job"], job["state"]) for job in second.status()["jobs"]] == [("one", "starting")]
    closed(second)


def test_a_controller_is_stopped_also_where_that_cannot_be_recorded(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[object] = []
    monkeypatch.setattr("ray.kill", killed.append)
    for job in ("one", "two"):
        controller.submit(submission(job))
    controller._look()
    controller._records._table.sql.execute("pragma query_only = on")
    said = controller.stop()
    assert said is not None
    assert "cannot be written: attempt to write a readonly database; free or mend that disk" in said
    assert len(killed) == 2


def test_what_cannot_be_recorded_has_not_happened(controller: Controller) -> None:
    controller._records._table.sql.execute("pragma query_only = on")
    with pytest.raises(NereusError, match="cannot be written"):
        controller.submit(submission("one"))
    assert controller.status()["jobs"] == []


def test_a_job_that_another_version_recorded_fails_and_holds_up_no_other(controller: Controller) -> None:
    told = submission("old").record("old")
    controller._write(replace(told, body=told.body.replace('"steps"', '"rounds"')))
    controller.submit(submission("new"))
    controller._look()
    views = {job["job"]: job for job in controller.status()["jobs"]}
    assert {name: view["state"] for name, view in views.items()} == {"old": "failed", "new": "starting"}
    assert "this version cannot read its job" in views["old"]["reason"]


def test_a_runner_that_was_started_and_not_recorded_ends_with_its_job(
    ray: FakeRay, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full when its launch was to be recorded, and it is cancelled before the next look."""
    killed: list[object] = []
    monkeypatch.setattr("ray.kill", killed.append)
    controller.submit(submission("one"))
    ray.actors.add(runner_name("one"))
    assert controller.cancel("one", "")
    controller._look()
    assert len(killed) == 1


def test_nodes_are_seen_also_when_no_job_is_left(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    controller.submit(submission("one"))
    controller._look()
    controller._write(Ended(job="one", state="finished", reason=""))
    monkeypatch.setattr(actors.controller, "devices_of", lambda _: ())
    controller._look()
    assert controller.status()["devices"]["nereus_device"]["there"] == 0


def closed(controller: Controller) -> None:
    """As the end of its process leaves it."""
    controller._records.close()
    if controller._lock is not None:
        controller._lock.close()
