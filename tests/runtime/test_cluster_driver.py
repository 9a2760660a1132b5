"""What the controller of several jobs does in one look, and what it leaves undone where something fails."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from nereus.errors import NereusError, UserError
from nereus.policy.grants import Claim
from nereus.policy.seating import Node, Shape
from nereus.runtime.cluster_driver import LINGER_S, LOCK_FILE, RECORDS_FILE, Bounds, ClusterDriver
from nereus.runtime.cluster_ports import Look, Outcome
from nereus.runtime.locking import held
from tests.runtime.cluster_world import KIND, Clock, Dies, FakeCluster, driver_of, one, submitted


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(nodes={"a": Node(id="a", devices=2)})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def driver(tmp_path: Path, cluster: FakeCluster, clock: Clock) -> Iterator[ClusterDriver]:
    made = driver_of(tmp_path, cluster, clock)
    yield made
    made.close()


def states(driver: ClusterDriver) -> dict[str, str]:
    return driver.situation.states()


def no_write(driver: ClusterDriver, *, stopped: bool) -> None:
    """Let the records refuse what is written, as on a full disk."""
    driver._records._table.sql.execute(f"pragma query_only = {'on' if stopped else 'off'}")


def test_a_job_is_started_on_its_devices_with_the_look_that_finds_them(driver: ClusterDriver, cluster: FakeCluster) -> None:
    assert driver.submit(one("first")) == "first"
    assert states(driver) == {"first": "queued"}
    driver.look()
    assert driver.failed is None
    assert states(driver) == {"first": "starting"}
    assert len(cluster.runners["first"].seats) == 1
    driver.look()
    assert states(driver) == {"first": "running"}
    assert cluster.started == ["first"]


def test_names_are_given_once_for_ever(driver: ClusterDriver, cluster: FakeCluster) -> None:
    assert [driver.submit(one("job")) for _ in range(3)] == ["job", "job-2", "job-3"]
    driver.cancel("job", "")
    assert driver.submit(one("job")) == "job-4"
    assert driver.situation.grants.claims["job-2"].told.run == "job-2-20260101-000000"


def test_a_job_that_is_handed_in_again_since_nobody_heard_the_answer_is_one_job(driver: ClusterDriver) -> None:
    told = one("job")
    assert [driver.submit(told) for _ in range(2)] == ["job", "job"]
    assert list(states(driver)) == ["job"]


def test_a_runner_that_was_started_and_not_recorded_is_found_and_not_started_again(
    tmp_path: Path, cluster: FakeCluster, clock: Clock
) -> None:
    """The controller died between the two."""
    first = driver_of(tmp_path, cluster, clock)
    first.submit(one("job"))
    cluster.fails_with, cluster.fails_after = Dies, True
    cluster.fails_at = ["looks", "seen", "start"].index("start")
    with pytest.raises(Dies):
        first.look()
    first.close()
    assert cluster.started == ["job"]
    again = driver_of(tmp_path, cluster, clock)
    assert states(again) == {"job": "starting"}, "granted, as far as it knows"
    assert not again.situation.grants.launched()
    again.look()
    assert [claim.told.job for claim in again.situation.grants.launched()] == ["job"]
    assert cluster.started == ["job"]
    again.close()


def test_a_job_whose_start_was_not_recorded_keeps_what_a_lost_node_leaves_it(
    driver: ClusterDriver, cluster: FakeCluster
) -> None:
    cluster.nodes["b"] = Node(id="b", devices=2)
    driver.submit(submitted("job", Shape(2, 2, False), 4))
    cluster.fails_at, cluster.fails_after = 2, True
    driver.look()
    cluster.a_node_goes("b")
    driver.submit(one("next"))
    driver.look()
    assert states(driver) == {"job": "running", "next": "queued"}
    assert len(driver.situation.grants.claims["job"].seats) == 2


def test_a_runner_that_was_started_and_not_recorded_ends_with_its_job(driver: ClusterDriver, cluster: FakeCluster) -> None:
    """The disk was full when its launch was to be recorded, and it is cancelled before the next look."""
    driver.submit(one("job"))
    cluster.fails_at, cluster.fails_after = 2, True
    driver.look()
    assert driver.failed == "its last look failed: ConnectionError: in the middle of a call"
    assert "job" in cluster.runners
    assert driver.cancel("job", "an operator")
    driver.look()
    assert cluster.runners == {}


def test_a_job_that_cannot_be_started_fails_and_holds_up_no_other(driver: ClusterDriver, cluster: FakeCluster) -> None:
    cluster.refused = frozenset({"bad"})
    for job in ("bad", "good"):
        driver.submit(one(job))
    driver.look()
    assert states(driver) == {"bad": "failed", "good": "starting"}
    ended = driver.outcome("bad")
    assert ended is not None
    assert ended[0].reason == "bad cannot be started"


def test_a_look_that_fails_is_told_and_the_next_one_goes_on(
    driver: ClusterDriver, cluster: FakeCluster, clock: Clock
) -> None:
    driver.submit(one("job"))
    for now_s in (0.0, 5.0):
        cluster.fails_at, clock.now_s = 0, now_s
        driver.look()
    assert driver.failed == "its last look failed: ConnectionError: in the middle of a call"
    assert driver.failing_s == 5.0
    driver.look()
    assert (driver.failed, driver.failing_s) == (None, 0.0)
    assert states(driver) == {"job": "starting"}


def test_a_job_that_ended_stays_a_while_for_whoever_watches_it(
    driver: ClusterDriver, cluster: FakeCluster, clock: Clock
) -> None:
    driver.submit(one("job"))
    driver.look()
    cluster.runners["job"].outcome = Outcome("finished", "9 steps")
    driver.look()
    assert states(driver) == {"job": "finished"}
    clock.now_s = LINGER_S - 1
    driver.look()
    assert "job" in cluster.runners
    clock.now_s = LINGER_S
    driver.look()
    assert "job" not in cluster.runners
    told = driver.outcome("job")
    assert told is not None
    assert told[1] == Outcome("finished", "9 steps"), "also afterwards"


def test_a_runner_that_is_gone_has_failed_its_job_and_one_that_is_late_has_not(
    driver: ClusterDriver, cluster: FakeCluster
) -> None:
    for job in ("late", "gone"):
        driver.submit(one(job))
    driver.look()
    cluster.runners["late"].is_late = True
    del cluster.runners["gone"]
    driver.look()
    assert states(driver) == {"late": "starting", "gone": "failed"}


def test_devices_go_to_the_next_once_they_were_left_by_the_offer_that_was_heard(
    driver: ClusterDriver, cluster: FakeCluster
) -> None:
    driver.submit(submitted("wide", Shape(1, 2, False), 1))
    driver.look()
    driver.look()
    cluster.runners["wide"].obeys()
    assert len(cluster.runners["wide"].seats) == 2
    driver.submit(one("next"))
    driver.look()
    driver.look()
    assert states(driver)["next"] == "queued"
    cluster.runners["wide"].obeys()
    driver.look()
    assert states(driver)["next"] == "starting"
    taken = [seat for runner in cluster.runners.values() for seat in runner.seats.values()]
    assert len(set(taken)) == len(taken) == 2


def test_other_step_times_are_recorded_when_they_change_by_more_than_a_tenth(
    driver: ClusterDriver, cluster: FakeCluster
) -> None:
    driver.submit(one("job", is_live=True))
    driver.look()
    for told, held_to_be in ((1.05, 1.0), (1.2, 1.2), (1.25, 1.2)):
        cluster.runners["job"].seconds = {1: told}
        driver.look()
        assert driver.situation.grants.claims["job"].seconds == {1: held_to_be}


def test_nodes_are_seen_also_when_no_job_is_left(driver: ClusterDriver, cluster: FakeCluster) -> None:
    driver.submit(one("job"))
    driver.look()
    driver.cancel("job", "")
    driver.look()
    cluster.nodes.clear()
    driver.look()
    assert driver.situation.device_counts()[KIND]["there"] == 0


def test_the_cluster_is_asked_when_the_number_changes_and_not_again(
    tmp_path: Path, cluster: FakeCluster, clock: Clock
) -> None:
    driver, asked = driver_of(tmp_path, cluster, clock, Bounds(1, 3)), []
    for job in ("a", "b", "c", None, None):
        if job is not None:
            driver.submit(one(job))
        driver.look()
        asked.append(dict(cluster.requested))
    assert asked == [{KIND: 1}, {KIND: 2}, {KIND: 3}, {KIND: 3}, {KIND: 3}]
    assert cluster.calls.count("request") == 3
    driver.stop()
    assert cluster.requested == {}
    driver.close()


def test_a_request_that_fails_is_made_again_and_holds_up_nothing(driver: ClusterDriver, cluster: FakeCluster) -> None:
    driver.submit(one("job"))
    cluster.fails_at = ["looks", "seen", "start", "request"].index("request")
    driver.look()
    assert driver.failed is not None
    assert states(driver) == {"job": "starting"}
    driver.look()
    assert driver.failed is None
    assert cluster.requested == {KIND: 1}


def test_what_cannot_be_recorded_has_not_happened(driver: ClusterDriver, cluster: FakeCluster) -> None:
    no_write(driver, stopped=True)
    with pytest.raises(NereusError, match="cannot be written: attempt to write a readonly database; free or mend that disk"):
        driver.submit(one("job"))
    assert states(driver) == {}
    no_write(driver, stopped=False)
    assert driver.submit(one("job")) == "job"


def test_a_controller_is_stopped_also_where_that_cannot_be_recorded(driver: ClusterDriver, cluster: FakeCluster) -> None:
    for job in ("one", "two"):
        driver.submit(one(job))
    driver.look()
    no_write(driver, stopped=True)
    said = driver.stop()
    assert said is not None
    assert "cannot be written" in said
    assert cluster.runners == {}
    driver.look()
    assert cluster.runners == {}, "it looks no more"


@pytest.mark.parametrize("call", ["request", "kill"])
def test_a_stop_that_fails_half_way_starts_nothing_and_is_finished_by_the_next(
    driver: ClusterDriver, cluster: FakeCluster, call: str
) -> None:
    for job in ("one", "two", "three"):
        driver.submit(one(job))
    driver.look()
    cluster.fails_at = ["request", "kill"].index(call)
    with pytest.raises(ConnectionError):
        driver.stop()
    driver.look()
    assert states(driver) == {"one": "starting", "two": "starting", "three": "queued"}
    assert driver.stop() is None
    assert cluster.runners == {}
    assert set(states(driver).values()) == {"cancelled"}


def test_an_end_stays_what_it_was_when_its_runner_dies_afterwards(driver: ClusterDriver, cluster: FakeCluster) -> None:
    driver.submit(one("job"))
    driver.look()
    for reason in ("9 steps", "the process of its runner died"):
        cluster.runners["job"].outcome = Outcome("finished" if reason == "9 steps" else "failed", reason)
        driver.look()
    told = driver.outcome("job")
    assert told is not None
    assert (told[0].reason, told[1]) == ("9 steps", Outcome("finished", "9 steps"))


def test_a_second_controller_of_a_folder_knows_nothing_until_the_folder_is_free(
    tmp_path: Path, cluster: FakeCluster, clock: Clock
) -> None:
    with held(tmp_path / LOCK_FILE):
        second = driver_of(tmp_path, cluster, clock)
        said = f"--folder: {tmp_path} cannot hold .* another controller .* give another"
        for asked in (second.check, second.stop, lambda: second.submit(one("job")), lambda: second.cancel("job", "")):
            with pytest.raises(UserError, match=said):
                asked()
        second.look()
        assert second.failed is not None
        assert cluster.calls == []
    second.look()
    assert second.failed is None
    assert second.submit(one("job")) == "job"
    second.close()


def test_a_controller_that_reads_its_records_late_has_what_it_knew(
    tmp_path: Path, driver: ClusterDriver, cluster: FakeCluster, clock: Clock
) -> None:
    driver.submit(one("job"))
    driver.close()
    (tmp_path / RECORDS_FILE).rename(tmp_path / "away")
    (tmp_path / RECORDS_FILE).mkdir()
    second = driver_of(tmp_path, cluster, clock)
    with pytest.raises(UserError, match="unable to open database file"):
        second.cancel("job", "")
    (tmp_path / RECORDS_FILE).rmdir()
    (tmp_path / "away").rename(tmp_path / RECORDS_FILE)
    second.look()
    assert states(second) == {"job": "starting"}
    second.close()


def test_who_asks_waits_for_no_look(tmp_path: Path, clock: Clock) -> None:
    """A runner that does not answer holds up the look, and nobody else."""
    entered, answers = threading.Event(), threading.Event()

    class Slow(FakeCluster):
        def looks(self, jobs: Collection[str]) -> Mapping[str, Look | None]:
            entered.set()
            assert answers.wait(60)
            return super().looks(jobs)

    driver = driver_of(tmp_path, Slow(nodes={"a": Node(id="a", devices=2)}), clock)
    driver.submit(one("first"))
    look = threading.Thread(target=driver.look)
    look.start()
    assert entered.wait(60)
    assert driver.submit(one("second")) == "second"
    assert driver.cancel("first", "meanwhile")
    assert states(driver) == {"first": "cancelled", "second": "queued"}
    assert look.is_alive()
    answers.set()
    look.join()
    assert driver.failed is None
    assert states(driver) == {"first": "cancelled", "second": "starting"}
    driver.close()


@pytest.mark.parametrize("refused", [frozenset[str](), frozenset({"job"})])
def test_a_job_that_is_cancelled_while_it_is_being_started_ends(
    tmp_path: Path, clock: Clock, refused: frozenset[str]
) -> None:
    class Cancelling(FakeCluster):
        def start(self, claim: Claim) -> None:
            if claim.told.job == "job":
                assert driver.cancel("job", "meanwhile")
            super().start(claim)

    cluster = Cancelling(nodes={"a": Node(id="a", devices=1)}, refused=refused)
    driver = driver_of(tmp_path, cluster, clock)
    driver.submit(one("job"))
    driver.look()
    assert (states(driver), driver.failed) == ({"job": "cancelled"}, None)
    driver.submit(one("next"))
    driver.look()
    assert list(cluster.runners) == ["next"], "before anybody else got its device"
    driver.close()


def test_records_of_another_kind_are_told_and_kept(tmp_path: Path, driver: ClusterDriver, cluster: FakeCluster) -> None:
    driver.submit(one("job"))
    driver.close()
    with sqlite3.connect(tmp_path / RECORDS_FILE) as sql:
        sql.execute("update records set body = '{}'")
    second = driver_of(tmp_path, cluster, Clock())
    with pytest.raises(UserError, match="cannot hold the controller's records"):
        second.check()
    with sqlite3.connect(tmp_path / RECORDS_FILE) as sql:
        assert sql.execute("select count(*) from records").fetchone() == (1,)


def test_a_fixed_job_is_offered_nothing(driver: ClusterDriver, cluster: FakeCluster) -> None:
    driver.submit(one("fixed"))
    driver.look()
    driver.look()
    assert "offer" not in cluster.calls
