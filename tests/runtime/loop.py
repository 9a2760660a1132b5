"""The RL loop of a job on a World, as the head actor serves it: start, boundary after boundary, and restarts of the head.

    Truth -> StepReport -> [PoolChanged] BoundaryReached -> Driver -> ports of the World -> facts -> Driver -> Release

The truth knows nothing of `nereus.cost`: it has floors, speeds and noise of its own, and counts its own work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

from nereus.control.effects import News
from nereus.control.events import BoundaryReached, Event, JobStarted, StepLost
from nereus.control.phases import Idle, Waiting
from nereus.control.report import Release, StepReport
from nereus.control.resume import pending
from nereus.control.state import JobConfig, JobState
from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.dense import layer_name
from nereus.monitor.pool import PoolEmulator
from nereus.planner.native import NativePricing
from nereus.rl.describe import config_of, describe
from nereus.runtime.driver import Driver
from nereus.runtime.journal import Journal
from nereus.runtime.ports import Ports
from nereus.spec.job import Job
from nereus.spec.loading import load_job
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.spec.traces import read_availability
from tests.builders import make_model, make_state
from tests.runtime.world import World

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def choice(tp: int, pp: int, dp: int, devices: str, micro_batch: int = 1) -> dict[str, Any]:
    return {"tp": tp, "pp": pp, "dp": dp, "devices": devices, "micro_batch": micro_batch}


FIRST = {
    ACTOR_GENERATION: choice(2, 1, 2, "0-3"),
    REFERENCE_INFERENCE: choice(1, 1, 2, "4-5"),
    ACTOR_TRAINING: choice(2, 2, 1, "0-3", micro_batch=4),
}

SCRIPT: tuple[dict[str, Any], ...] = (
    {"step": 1, "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}},  # Split
    {"step": 2, "stages": {ACTOR_TRAINING: choice(2, 2, 1, "0-3"), ACTOR_GENERATION: choice(4, 1, 1, "0-3")}},  # Merge
    {
        "step": 3,
        "join": "6-7",
        "stages": {ACTOR_TRAINING: choice(2, 1, 3, "0-3,6-7"), REFERENCE_INFERENCE: choice(1, 1, 3, "4-6")},
    },
    {
        "step": 4,
        "leave": "6-7",
        "stages": {ACTOR_TRAINING: choice(2, 1, 1, "0-1"), REFERENCE_INFERENCE: choice(1, 1, 2, "4-5")},
    },
    {"step": 6, "join": "6", "stages": {REFERENCE_INFERENCE: choice(1, 1, 3, "4-6")}},
    {"step": 7, "leave": "6", "stages": {REFERENCE_INFERENCE: choice(1, 1, 2, "4-5")}},
    {
        "step": 8,
        "join": "7",
        "stages": {ACTOR_TRAINING: choice(2, 1, 2, "0-1,4,7"), ACTOR_GENERATION: choice(1, 1, 5, "0-3,7")},
    },
)
"""All four primitives, two stages at once, devices that join, leave and come back."""


def small_state(*, optimizer: bool = False) -> StateSpec:
    """A tied model of three layers with one or two tensors in each, every sharding rule among them, and the counters."""
    state = make_state(make_model(num_layers=3, vocab=11, tied=True), optimizer=optimizer)
    parts = ("input_layernorm", "self_attn.k_proj"), ("mlp.up_proj",), ("self_attn.o_proj", "self_attn.q_proj")
    kept = {layer_name(layer, part) for layer, names in enumerate(parts) for part in names}
    return StateSpec(tuple(t for t in state.tensors if t.layer is None or t.name in kept), state.num_layers)


def small_job(**fields: Any) -> Job:
    """A job of twelve sequences per step on 8 devices of two nodes; six of them are there at the start."""
    return Job.model_validate(
        {
            "name": "small",
            "steps": 10,
            "model": make_model(num_layers=3, vocab=11, tied=True),
            "task": {"name": "letter_class"},
            "workload": {
                "prompts_per_step": 4,
                "samples_per_prompt": 30,
                "max_prompt_tokens": 6,
                "response_cap": [{"step": 1, "tokens": 6}],
            },
            "optimizer": {"learning_rate": 1e-3},
            "cluster": {"nodes": 2, "devices_per_node": 4, "device": {"kind": "cpu", "speed": 0.1, "memory": "1MiB"}},
            "absent": "6-7",
            "plan": FIRST,
            **fields,
        }
    )


def small_config(job: Job) -> JobConfig:
    frozen = small_state()
    states = {ACTOR_GENERATION: frozen, REFERENCE_INFERENCE: frozen, ACTOR_TRAINING: small_state(optimizer=True)}
    return config_of(job, states)


def job_of(config: JobConfig) -> Job:
    """The job file behind a configuration."""
    assert isinstance(config.prior, NativePricing)
    return config.prior.job


def scripted_config(*script: Mapping[str, Any], **fields: Any) -> JobConfig:
    return small_config(small_job(transitions=list(script or SCRIPT), **fields))


def adaptive_job(**policy: Any) -> Job:
    """A small job whose plan may change by itself; all of its stages are on the first four of eight devices."""
    return small_job(
        absent=(),
        steps=1000,
        policy={"adapt": True, **policy},
        plan={
            ACTOR_GENERATION: choice(1, 1, 4, "0-3", micro_batch=4),
            REFERENCE_INFERENCE: choice(1, 1, 4, "0-3", micro_batch=4),
            ACTOR_TRAINING: choice(2, 1, 2, "0-3", micro_batch=4),
        },
    )


POOL = PoolEmulator((4, 8, 8, 8, 6, 6, 6, 6, 8, 8, 8, 8, 4), tuple(range(8)), 2)
"""Four devices, all eight, six, all again, four: two steps of notice."""


def adaptive_config(**policy: Any) -> JobConfig:
    return small_config(adaptive_job(**policy))


def quickstart(**changes: Any) -> tuple[JobConfig, PoolEmulator]:
    """examples/quickstart.yaml and its pool, as the command line reads them."""
    job = load_job(QUICKSTART).model_copy(update=changes)
    assert job.availability is not None
    trace = read_availability(job.availability).scaled(job.cluster.num_devices)
    pool = PoolEmulator(trace.by_steps(job.steps), tuple(range(job.cluster.num_devices)), job.policy.notice_steps)
    return describe(job), pool


@dataclass
class Truth:
    """How long the stages of a job really take; nobody but the loop asks it. Every seed is another machine."""

    job: Job
    seed: int = 0
    noise: float = 0.03
    _rng: Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = Random(f"truth {self.seed}")
        self._flops = 4e9 * self._rng.uniform(0.8, 1.25)
        self._floor_s = {
            ACTOR_GENERATION: 3.5e-3 * self._rng.uniform(0.8, 1.25),
            REFERENCE_INFERENCE: 1.5e-3 * self._rng.uniform(0.8, 1.25),
            ACTOR_TRAINING: 2.5e-3 * self._rng.uniform(0.8, 1.25),
        }
        self._reduce_s = 2.5e-3 * self._rng.uniform(0.8, 1.25)

    def stage_s(self, stage: StagePlan, prompt: int, response: float) -> float:
        """Seconds of a model-stage: what each call costs whatever its size, what it computes, what its group talks."""
        model, layout, length = self.job.model, stage.layout, prompt + response
        rows = ceil(self.job.global_batch / stage.dp)
        micro = min(stage.micro_batch, rows)
        passes = 3 if stage.stage == ACTOR_TRAINING else 1
        layers = ceil(model.num_layers / layout.pp)
        per_layer = 2 * model.hidden_size * (2 * model.num_heads * model.head_dim + 3 * model.ffn_size) / layout.tp
        if stage.stage == ACTOR_GENERATION:
            slots, rounds = ceil(rows / micro) * response, 1.0
        else:
            slots, rounds = ceil(rows / micro) + layout.pp - 1.0, (ceil(rows / micro) + layout.pp - 1) * micro / rows
        calls = slots * passes * layers
        flops = rounds * passes * rows * length * layers * per_layer
        reduces = calls * 2 * self._reduce_s * (layout.tp - 1)
        seconds = self._floor_s[stage.stage] * calls + flops / self._flops + reduces
        return seconds * self._rng.uniform(1 - self.noise, 1 + self.noise)

    def report(self, step: int, release: Release) -> StepReport:
        """A step that was run on a release; responses are as long as the cap."""
        cap, prompt = self.job.workload.cap_at(step), self.job.workload.max_prompt_tokens
        stage_s = {name: self.stage_s(stage, prompt, cap) for name, stage in release.plan.stages.items()}
        return StepReport(
            step=step,
            reward=0.25 + step / 100,
            response_tokens_mean=float(cap),
            response_tokens_max=cap,
            num_samples=self.job.global_batch,
            loss=0.0,
            kl=0.0,
            grad_norm=1.0,
            updates=step,
            stage_s=stage_s,
            step_s=sum(stage_s.values()),
            late_s=0.0,
            declared_s=0.0,
            peak_bytes={e: 1 for emus in release.emus.values() for emu in emus for e in emu.endpoints},
        )


class Hangs(AssertionError):
    """The loop waits, and no fact is on its way."""


class Loop:
    """A job on a World, with a journal in a file."""

    def __init__(
        self,
        world: World,
        journal: Path,
        *,
        pool: PoolEmulator | None = None,
        truth: Truth | None = None,
        order: Random | None = None,
    ) -> None:
        """`order` leaves some facts undelivered when the loop goes on; without it all are delivered first."""
        self.world, self.pool = world, pool
        self.truth = truth or Truth(job_of(world.config))
        self.last: Release | None = None
        self.step, self.followed = 0, 0
        """Completed steps, and the epoch of the last checkpoint that the loop went back to."""
        self.crash_after: int | None = None
        """The head dies after this many events."""
        self.crash_acted = True
        """Whether it dies after it has started the effects of the last one."""
        self.after_event: Callable[[Event], None] = lambda event: None
        self._order, self._path, self.num_posted = order, journal, 0
        self._ask: tuple[Event, ...] = ()
        self.driver = self._driver()

    @property
    def state(self) -> JobState:
        return self.driver.state

    @property
    def news(self) -> list[News]:
        return self.driver.news

    def begin(self) -> Release | None:
        job = job_of(self.world.config)
        devices = self.pool.start() if self.pool else tuple(d for d in range(job.cluster.num_devices) if d not in job.absent)
        return self._asked(JobStarted(devices=devices))

    def boundary(self, step: int) -> Release | None:
        """Run a step on the last release, and report it. None when the job is stopped."""
        assert self.last is not None
        self.world.boundary = step
        if self.world.holds_values:
            self.world.sync(self.last)
            self.world.train()
        self.world.now_s += 1.0
        self.step = step
        ask: tuple[Event, ...] = (BoundaryReached(report=self.truth.report(step, self.last), followed=self.followed),)
        if self.pool is not None and not self.pool.changes(step + self.state.pool_ahead).is_empty:
            ask = (self.pool.changed(step, self.state.pool_ahead), *ask)
        return self._asked(*ask)

    def lost(self, endpoint: EndpointId, during: str) -> Release | None:
        """The loop has lost a step, since a process died; it waits to do it again."""
        return self._asked(StepLost(endpoint=endpoint, during=during))

    def ask_again(self) -> Release | None:
        """The head has restarted: the loop asks once more."""
        return self._asked(*self._ask)

    def run(self, steps: int) -> None:
        """Start, and run until the last boundary, or until the job is stopped."""
        self.begin()
        while self.step < steps and self.world.stopped is None:
            self.boundary(self.step + 1)

    def post(self, event: Event) -> bool:
        """One event into the Driver; the head dies with it if it is its time. Whether it did."""
        self.num_posted += 1
        if self.num_posted != self.crash_after:
            self.driver.post(event)
            self.after_event(event)
            return False
        if self.crash_acted:
            self.driver.post(event)
        else:
            self._journal.append(self.world.clock(), event)
        self.restart()
        return True

    def restart(self) -> None:
        """As actors/head.py does it after a death; the loop then asks again, unless it had its answer."""
        self._journal.close()
        self.world.forget()
        self.driver = self._driver()
        self.driver.recover()
        if not isinstance(self.driver.state.phase, Idle):
            self.driver.start(pending(self.driver.state))
        if self.world.released is None and self.world.stopped is None:
            for event in self._ask:
                self.driver.post(event)

    def close(self) -> None:
        self._journal.close()

    def _driver(self) -> Driver:
        self._journal = Journal(self._path)
        self._journal.open()
        ports = Ports(self.world, self.world, self.world, self.world)
        return Driver(JobState(config=self.world.config), ports, self._journal, self.world.clock)

    def _asked(self, *ask: Event) -> Release | None:
        self.world.released, self._ask = None, ask
        for event in ask:
            if self.post(event):
                break
        while self.world.stopped is None:
            if self.world.released is not None and self._order is not None and self._order.random() < 0.3:
                break
            fact = self.world.next_fact(wait=self.world.released is None)
            if fact is not None:
                self.post(fact)
            elif self.world.released is not None:
                break
            elif self.pool is not None and isinstance(self.state.phase, Waiting) and not self.state.pool_ended:
                self.post(self.pool.changed(self.state.step, self.state.pool_ahead + 1))
            else:
                raise Hangs(f"the loop waits in {type(self.state.phase).__name__}")
        self.last = self.world.released or self.last
        self._follow()
        return self.world.released

    def _follow(self) -> None:
        """Go back to the checkpoint of a release, once."""
        followed = self.world.released.followed if self.world.released is not None else None
        if followed is not None and followed.epoch != self.followed:
            self.followed, self.step = followed.epoch, self.state.step
            self.world.go_back(followed.folder)

    def emus(self) -> list[Emu]:
        return list(self.state.bound)
