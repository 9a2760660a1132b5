"""What happens on one cluster of `ray start`, from its start to the end of the last job: looked at by several tests.

submit: a Ray job -> follow: a raylet dies, a node takes its leave -> control: two jobs at once, one that waits
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nereus.control.events import JobStarted, PoolChanged
from nereus.policy.grants import Ended, Freed, Grants, Record, after
from nereus.policy.seating import PoolDevice
from nereus.runtime.records import Records
from tests.actors import journals
from tests.actors.clusters import ROOT, Started
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, stage
from tests.actors.processes import descendants, named, wait_until
from tests.metrics.prometheus import PROMETHEUS, Prometheus, scraping
from tests.metrics.queries import shown

PATIENCE_S = 240.0
"""For a machine that does other work beside."""

VIEWER, OPERATOR = "look-only-0123456789", "may-do-all-0123456789"
"""The tokens of the controller's API."""

SAMPLER = """
import json, sys, time, ray
from ray._private.state import actors
from actors.connection import attached
from actors.controller import CONTROLLER
def status():
    try:
        return ray.get(ray.get_actor(CONTROLLER).status.options(concurrency_group="ask").remote(), timeout=2)
    except (ValueError, ray.exceptions.RayError):
        return None
with attached(sys.argv[1]):
    while True:
        rows = actors(actor_state_name="ALIVE").values()
        workers = [(r["Name"], r["Address"]["NodeID"]) for r in rows if r["ActorClassName"] == "Worker"]
        print(json.dumps({"at_s": time.time(), "workers": workers, "status": status()}), flush=True)
        time.sleep(0.25)
"""
"""Prints Ray's own list of living workers and what the controller says, again and again; None while it is dead."""


def job_file(folder: Path, name: str, steps: int, dp: int, speed: float, **fields: Any) -> Path:
    """A job on slow devices: three nodes of two are declared, its first plan is data-parallel."""
    devices = f"0-{dp - 1}"
    plan = {GENERATION: stage(1, 1, dp, devices, 4), REFERENCE: stage(1, 1, dp, devices, 4)}
    told = {
        **TINY,
        "name": name,
        "dtype": "float32",
        "steps": steps,
        "save_weights": False,
        "cluster": {"nodes": 3, "devices_per_node": 2, "device": {"memory": "256MiB", "speed": speed}},
        "policy": {"adapt": True},
        "plan": {**plan, TRAINING: stage(1, 1, dp, devices, 2)},
        **fields,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


@dataclass(frozen=True, kw_only=True)
class Scraped:
    """What a Prometheus that scraped the controller's API came to."""

    without_data: list[str]
    """Queries of panels about a controller of several jobs that show no number."""
    num_queries: int
    fired: list[str]
    """Alerts."""
    most_running: float
    """Jobs that ran at once, at most."""


@dataclass
class Story:
    """What happened on one cluster, from its start to the end of the last job."""

    submitted: subprocess.CompletedProcess[str] | None = None
    followers: dict[str, tuple[int, Path]] = field(default_factory=dict)
    """The exit codes and folders of the jobs that were alone."""
    left: subprocess.CompletedProcess[str] | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Of the two jobs' time, as the sampler prints them."""
    controller: Path = Path()
    started: tuple[str, str] = ("", "")
    status: dict[str, Any] = field(default_factory=dict)
    """What the command shows when both jobs are over."""
    watched: tuple[int, str] = (-1, "")
    interrupted: int = -1
    killed_s: float = 0.0
    """When the controller was killed."""
    cancelled: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    """Of a job that runs, of that job again, of one that there is not."""
    scraped: Scraped | None = None
    """None where there is no Prometheus."""
    stopped: str = ""
    leftover: list[str] = field(default_factory=list)

    def last(self, job: str) -> dict[str, Any]:
        """The latest view of a job."""
        return next(view for view in self.status["jobs"] if view["job"] == job)

    def views(self) -> list[dict[str, dict[str, Any]]]:
        """The jobs, by name, at each sample."""
        return [{view["job"]: view for view in sample["status"]["jobs"]} for sample in self.samples if sample["status"]]


def tell(ray: Started, told: Story) -> None:
    """All of it."""
    told.submitted = submit(ray)
    follow(ray, told)
    ray.add_node(2)
    ray.add_node(2)
    control(ray, told)


PROBE = """
import subprocess, sys, ray
ray.init(logging_level="ERROR", log_to_driver=False)
@ray.remote(num_cpus=0)
def where():
    import actors.worker, nereus
    return [nereus.__file__, actors.worker.__file__]
print("IN A WORKER", *ray.get(where.remote()))
ray.shutdown()
command = [sys.executable, "-m", "nereus", "run", "quickstart", "--steps", "4", "--json"]
sys.exit(subprocess.run(command).returncode)
"""
"""Says what workers import, then runs the quickstart."""


def submit(ray: Started) -> subprocess.CompletedProcess[str]:
    """Some steps of the quickstart, as a Ray job whose folder holds no code: the wheel travels with it."""
    wheels, jobs, code = (ray.folder / name for name in ("wheels", "jobs", "code"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(wheels.glob("nereus_rl-*.whl"))) as wheel:
        wheel.extractall(code)
    jobs.mkdir()
    (jobs / "probe.py").write_text(PROBE)
    modules = json.dumps({"py_modules": [str(code / name) for name in ("nereus", "actors")]})
    command = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", ray.url, "--working-dir", str(jobs)]
    return ray.run(*command, "--runtime-env-json", modules, "--", sys.executable, "probe.py", timeout_s=PATIENCE_S)


def follow(ray: Started, told: Story) -> None:
    """Two jobs, one after the other, that have the cluster to themselves: a node of the plan dies, or takes its leave."""

    def kill(node: int) -> None:
        os.kill(ray.raylet(node).pid, signal.SIGKILL)

    def leave(node: int) -> None:
        leaver = next(row["NodeID"] for row in nodes(ray) if row["Alive"] and row["devices"] == 4)
        command = ("leave", "--address", ray.address, "--node", leaver, "--notice", "60")
        told.left = ray.nereus(*command, timeout_s=PATIENCE_S)

    alone(ray, told, "survivor", 8, kill)
    alone(ray, told, "mover", 24, leave)


def alone(ray: Started, told: Story, name: str, steps: int, happens: Callable[[int], None]) -> None:
    """Run a job to its end; something happens to the node beside the head that it uses, in its fourth step."""
    path, runs = job_file(ray.folder, name, steps, 4, 0.06), ray.folder / name
    run = background(ray, "run", str(path), "--address", ray.address, "--run-dir", str(runs))
    try:
        wait_until(lambda: run.poll() is not None or list(runs.glob("*")), PATIENCE_S)
        (folder,) = runs.glob("*")
        wait_until(lambda: 3 in journals.steps(folder) or run.poll() is not None, PATIENCE_S)
        happens(in_use(ray))
        told.followers[name] = run.wait(PATIENCE_S), folder
    finally:
        run.kill()
        run.wait()


def control(ray: Started, told: Story) -> None:
    """Two jobs at once, one that finds no room, and a controller that dies meanwhile."""
    told.controller = ray.folder / "controller"
    tokens = ray.folder / "tokens"
    tokens.write_text(f"viewer:{VIEWER}\noperator:{OPERATOR}\n")
    start = ("controller", "start", "--folder", str(told.controller), "--port", "0", "--token-file", str(tokens))
    # As the chart starts it: by a Ray job, which knows its cluster, and which it outlives.
    command = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", ray.url]
    first = ray.run(*command, "--", sys.executable, "-m", "nereus", *start, timeout_s=PATIENCE_S)
    again = ray.nereus(*start, "--address", ray.address, timeout_s=PATIENCE_S)
    told.started = first.stdout + first.stderr, again.stdout + again.stderr
    with sampling(ray, told), scraped(ray, told):
        # The first has grown to 4 of 6 devices when the second wants 4: it has to leave two, and gets them back.
        first, second = (job_file(ray.folder, *asked, 0.06) for asked in (("first", 500, 2), ("second", 8, 4)))
        wide = {"nodes": 4, "devices_per_node": 2, "device": {"memory": "256MiB"}}
        huge = job_file(ray.folder, "huge", 2, 2, 0.1, cluster=wide, policy={"adapt": False})
        detached = ray.nereus("run", str(first), "--address", ray.address, "--detach", timeout_s=PATIENCE_S)
        assert detached.returncode == 0, detached.stderr
        waits = background(ray, "run", str(huge), "--address", ray.address)
        watcher = background(ray, "run", str(second), "--address", ray.address, "--json")
        until(ray, "second", lambda job: (job["step"] or 0) >= 1)
        told.killed_s = time.time()
        kill_controller(ray)
        waits.send_signal(signal.SIGINT)
        told.interrupted = waits.wait(PATIENCE_S)
        told.cancelled["nobody"] = cancel(ray, "nobody")
        told.watched = watcher.wait(PATIENCE_S), printed(ray, "second").read_text()
        until(ray, "first", lambda job: len(job["devices"]) == 4)
        told.cancelled["first"] = cancel(ray, "first")
        until(ray, "first", lambda job: job["state"] == "cancelled")
        told.cancelled["again"] = cancel(ray, "first")
        shown = ray.nereus("controller", "status", "--address", ray.address, "--json", timeout_s=PATIENCE_S)
        told.status = json.loads(shown.stdout.splitlines()[-1])
    stopped = ray.nereus("controller", "stop", "--address", ray.address, timeout_s=PATIENCE_S)
    told.stopped = stopped.stdout + stopped.stderr
    wait_until(lambda: not ray.workers(), 30)
    told.leftover = [p.command for p in named(everything(ray), "(Runner|Head|JobActor|Controller|Api)")]


def cancel(ray: Started, job: str) -> subprocess.CompletedProcess[str]:
    """End a job of the controller by the command."""
    return ray.nereus("controller", "cancel", job, "--address", ray.address, timeout_s=PATIENCE_S)


def api_of(output: str) -> str:
    """The address in what `nereus controller start` prints."""
    return next(line.split("API at ")[1].split()[0] for line in output.splitlines() if "API at " in line)


def everything(ray: Started) -> set[Any]:
    return {process for node in ray.nodes for process in descendants(node.pid)}


def in_use(ray: Started) -> int:
    """The node beside the head on which a job has its workers."""
    up = [at for at, node in enumerate(ray.nodes) if at and node.poll() is None]
    workers = {at: len(named(descendants(ray.raylet(at).pid), "Worker")) for at in up}
    return max(workers, key=lambda at: workers[at])


def background(ray: Started, *arguments: str) -> subprocess.Popen[bytes]:
    """A command of ours that goes on by itself; what it prints is in NAME.out, by its job file."""
    command, path = [sys.executable, "-m", "nereus", *arguments], printed(ray, Path(arguments[1]).stem)
    with path.open("wb") as out:
        outputs = {"stdout": out, "stderr": out}
        return subprocess.Popen(command, env=ray.environment, cwd=ray.folder, **outputs, preexec_fn=interruptible)


def interruptible() -> None:
    """Take Ctrl-C, also where the tests themselves run in a shell's background, which has its children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def printed(ray: Started, job: str) -> Path:
    """Where a command in the background prints."""
    return ray.folder / f"{job}.out"


def until(ray: Started, job: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until a job is as it should be, by the samples."""

    def is_so() -> bool:
        told = next((sample["status"] for sample in reversed(sampled(ray)) if sample["status"]), {"jobs": []})
        return any(condition(view) for view in told["jobs"] if view["job"] == job)

    wait_until(is_so, PATIENCE_S)


def nodes(ray: Started) -> list[dict[str, Any]]:
    """What Ray says of its nodes."""
    script = (
        "import json, ray; ray.init(address=%r, log_to_driver=False, logging_level='ERROR'); "
        "print(json.dumps([{**n, 'devices': n['Resources'].get('nereus_device', 0)} for n in ray.nodes()], default=str))"
    )
    found: list[dict[str, Any]] = json.loads(ray.run(sys.executable, "-c", script % ray.address).stdout.splitlines()[-1])
    return found


def kill_controller(ray: Started) -> None:
    """Kill the controller's process, and wait until Ray has started another."""
    (victim,) = named(everything(ray), "Controller")
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: [p for p in named(everything(ray), "Controller") if p.pid != victim.pid], PATIENCE_S)


@contextmanager
def scraped(ray: Started, told: Story) -> Iterator[None]:
    """A Prometheus that scrapes the controller's API all the while, with the viewer's token."""
    if PROMETHEUS is None:
        yield
        return
    scrape = {"job_name": "nereus", "authorization": {"credentials": VIEWER}}
    with scraping(api_of(told.started[1]), ray.folder / "prometheus", scrape) as server:
        began_s = time.time()
        yield
        told.scraped = what_it_saw(server, began_s)


def what_it_saw(server: Prometheus, began_s: float) -> Scraped:
    """Asked while the controller still answers."""
    last_s = server.last_scrape_s(began_s, time.time())
    queries = [query for query in shown() if query.is_of_several_jobs]
    running = server.over('nereus_controller_jobs{state="running"}', began_s, last_s)
    return Scraped(
        without_data=server.without_data(queries, began_s, last_s),
        num_queries=len(queries),
        fired=server.fired(began_s, last_s),
        most_running=max(value for _, values in running for value in values),
    )


@contextmanager
def sampling(ray: Started, told: Story) -> Iterator[None]:
    """Ray's own list of living workers, and what the controller says, all the while."""
    with samples(ray).open("w") as out:
        sampler = subprocess.Popen([sys.executable, "-c", SAMPLER, ray.address], env=ray.environment, stdout=out)
        try:
            yield
        finally:
            sampler.kill()
            sampler.wait()
            told.samples = sampled(ray)


def samples(ray: Started) -> Path:
    return ray.folder / "samples.jsonl"


def sampled(ray: Started) -> list[dict[str, Any]]:
    """Whole lines only: one may be on its way."""
    return [json.loads(line) for line in samples(ray).read_text().rpartition("\n")[0].splitlines()]


def recorded(story: Story) -> list[tuple[float, Record]]:
    """The controller's own record."""
    records = Records(story.controller / "grants.sqlite")
    records.open()
    found = records.all()
    records.close()
    return found


def at(story: Story, time_s: float) -> Grants:
    """Who has what at a time; that no pool device is granted twice is checked on the way."""
    return after(Grants(), [record for at_s, record in recorded(story) if at_s <= time_s])


def holdings(story: Story, job: str) -> Iterator[tuple[PoolDevice, float, float]]:
    """What a job held from when to when, as its own journal tells it; which pool devices, the controller's record says."""
    folder, since = Path(story.last(job)["folder"]), dict[int, tuple[PoolDevice, float]]()
    ended = next(at_s for at_s, record in recorded(story) if isinstance(record, Ended) and record.job == job)
    for at_s, event in journals.timed(folder):
        comes = event.devices if isinstance(event, JobStarted) else ()
        comes, goes = (event.arriving, event.gone) if isinstance(event, PoolChanged) else (comes, ())
        for place in comes:
            since[place] = at(story, at_s).claims[job].seats[place], at_s
        for place in goes:
            seat, began = since.pop(place)
            yield seat, began, at_s
            freed = [
                t for t, r in recorded(story) if isinstance(r, Freed) and r.job == job and place in r.places and t >= at_s
            ]
            assert freed, f"{job} has left {seat}, and it was not given back"
    for seat, began in since.values():
        yield seat, began, ended
