"""The job actor: runs the RL loop on the head node, and tells what happens.

`run` blocks on the loop's lane until the job has ended; `feed` answers on another one while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from actors.workers import RayWorkers
from nereus.cost.batch import Batch
from nereus.cost.memory import predicted_peaks
from nereus.emu.plan import Plan
from nereus.layout.catalog import StateSpec
from nereus.rl.assemble import save_weights
from nereus.rl.ledger import SampleLedger
from nereus.rl.loop import RlLoop
from nereus.rl.rollouts import RecordedRollouts, RolloutRecorder
from nereus.rl.sources import Live, Recorded, RolloutSource
from nereus.rl.task import make_task
from nereus.runtime.events import Event, Started
from nereus.runtime.scripted import ScriptedController
from nereus.runtime.summary import Summary, summarize
from nereus.spec.job import Job
from nereus.spec.stages import ACTOR_TRAINING

WEIGHTS_FILE = "model.safetensors"
"""The trained parameters, in the run's folder."""

JOB_LANES = {"loop": 1, "watch": 1}
"""The loop has a thread of its own, so that watching never waits for it."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the job actor is told when it is made."""

    job: Job
    nodes: tuple[str, ...]
    """The Ray node id of each device."""
    rendezvous: tuple[str, int]
    weights: Path | None
    """A safetensors file with the first weights; None for random ones."""
    folder: Path
    """The run's folder, on the head node."""


class JobActor:
    """One RL job."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._events: list[Event] = []

    def run(self) -> Summary:
        """Run the job to its end. Raises what ended it otherwise."""
        spec, job = self._spec, self._spec.job
        workers = RayWorkers(job, spec.nodes, spec.rendezvous, spec.weights)
        ledger = SampleLedger(job.task.num_prompts, job.seed)
        node_of = {device: job.cluster.node_of(device) for device in range(job.cluster.num_devices)}
        controller = ScriptedController(workers, workers, node_of, job.transitions, self._events.append)
        present = [device for device in range(job.cluster.num_devices) if device not in job.absent]
        recorder = RolloutRecorder(Path(job.rollouts.record)) if job.rollouts.record else None
        loop = RlLoop(job, workers, self._source(workers), ledger, controller.boundary, recorder)
        try:
            release = controller.start(job.plan, present)
            self._events.append(Started(plan=release.plan))
            for report in loop.run(release):
                self._events.append(report)
        except Exception:
            workers.abort(workers.endpoints)
            raise
        if job.save_weights:
            save_weights(spec.folder / WEIGHTS_FILE, loop.weights(workers.describe().states[ACTOR_TRAINING]))
        return summarize(self._events, ledger, partial(_predicted_peak, job, workers.describe().states))

    def feed(self, after: int) -> Sequence[Event]:
        """What happened since the first `after` events."""
        return self._events[after:]

    def _source(self, workers: RayWorkers) -> RolloutSource:
        job = self._spec.job
        if job.rollouts.source == "recorded":
            assert job.rollouts.path is not None
            return Recorded(RecordedRollouts(Path(job.rollouts.path)))
        task = make_task(job.task.name, job.seed, job.task.num_prompts)
        return Live(job, task, task.tokens.eos, workers)


def _predicted_peak(job: Job, states: Mapping[str, StateSpec], plan: Plan, step: int) -> int:
    """Predicted bytes of the worst device in one step."""
    workload = job.workload
    batch = Batch(job.global_batch, workload.max_prompt_tokens, workload.cap_at(step), job.grpo.updates_per_step)
    return max(predicted_peaks(plan, states, job.model, job.dtype, batch).values())
