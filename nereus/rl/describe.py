"""The native job as the controller sees it: its model-stages, and the logical state of each."""

from __future__ import annotations

from nereus.control.state import JobConfig
from nereus.emu.unit import counter_tensors
from nereus.layout.dense import state_spec
from nereus.spec.job import Job
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE


def describe(job: Job) -> JobConfig:
    """What the controller needs to know of a job."""
    counters = counter_tensors()
    frozen = state_spec(job.model, job.dtype, counters, optimizer=False)
    return JobConfig(
        job=job,
        states={
            ACTOR_GENERATION: frozen,
            REFERENCE_INFERENCE: frozen,
            ACTOR_TRAINING: state_spec(job.model, job.dtype, counters, optimizer=True),
        },
        trains=ACTOR_TRAINING,
        generates=ACTOR_GENERATION,
        node_of={device: job.cluster.node_of(device) for device in range(job.cluster.num_devices)},
    )
