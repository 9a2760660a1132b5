"""What the runner of a job is told when it is started. No Ray is started: actors are names that were asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.runner import RunnerSpec
from actors.runners import Runners, runner_name
from actors.submission import Submission
from nereus.errors import NereusError
from nereus.policy.grants import Claim
from nereus.policy.seating import PoolDevice
from nereus.spec.loading import parse_job
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, stage


class FakeRay:
    """The actors that were started, and what each runner was told."""

    def __init__(self) -> None:
        self.actors: set[str] = set()
        self.told: list[RunnerSpec] = []

    def remote(self, *, name: str, **_: Any) -> Callable[[type[Any]], Any]:
        ray = self

        class Made:
            def options(self, **_: Any) -> Made:
                return self

            def remote(self, spec: RunnerSpec) -> None:
                ray.actors.add(name)
                ray.told.append(spec)

        return lambda _: Made()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr("ray.remote", fake.remote)
    return fake


@pytest.fixture
def claim() -> Claim:
    """A job of one device, which it has."""
    cluster = {"nodes": 1, "devices_per_node": 1, "device": {"memory": "256MiB"}}
    plan = {name: stage(1, 1, 1, "0") for name in (GENERATION, REFERENCE, TRAINING)}
    submission = Submission(parse_job({**TINY, "name": "one", "cluster": cluster, "plan": plan}), "20260101-000000")
    return Claim(told=submission.record(), seats={0: PoolDevice("a", 0)})


def test_a_job_is_started_on_its_devices_in_its_folder(ray: FakeRay, tmp_path: Path, claim: Claim) -> None:
    Runners(tmp_path).start(claim)
    (spec,) = ray.told
    assert ray.actors == {runner_name("one")}
    assert spec.folder == tmp_path / "runs" / "one-20260101-000000"
    assert spec.folder.is_dir()
    assert spec.footing.seats == {0: PoolDevice("a", 0)}
    assert spec.footing.takes == {"resources": {"nereus_device": 1}}


def test_a_job_whose_folder_cannot_be_made_is_not_started(ray: FakeRay, tmp_path: Path, claim: Claim) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(NereusError, match="its folder cannot be made on the head node: "):
        Runners(tmp_path).start(claim)
    assert ray.actors == set()


def test_a_job_that_another_version_recorded_is_not_started(ray: FakeRay, tmp_path: Path, claim: Claim) -> None:
    told = replace(claim.told, body=claim.told.body.replace('"steps"', '"rounds"'))
    with pytest.raises(NereusError, match="this version cannot read its job"):
        Runners(tmp_path).start(replace(claim, told=told))
    assert ray.actors == set()
