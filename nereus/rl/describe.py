"""The native job as the controller sees it: its model-stages, and the logical state of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nereus.control.script import first_plan
from nereus.control.state import JobConfig
from nereus.emu.unit import counter_tensors
from nereus.layout.catalog import StateSpec
from nereus.layout.dense import state_spec
from nereus.planner.native import NativePricing
from nereus.spec.job import Job
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.transition.estimate import LinkRates

EMULATED = LinkRates(op_s=0.05, release_s=0.02, base_s=0.15, host_bytes_s=0.8e9, host_copy_bytes_s=0.4e9)
"""Devices that are emulated share the cores of one machine: on two of them eight endpoints together send 0.8 GB/s and cut
0.4 GB/s, with other work beside them. What each transition takes corrects that."""


def describe(job: Job, *, is_live: bool = False) -> JobConfig:
    """What the controller needs to know of a job; `is_live` where it follows the nodes of a cluster that is not its own."""
    counters = counter_tensors()
    frozen = state_spec(job.model, job.dtype, counters, optimizer=False)
    return config_of(
        job,
        {
            ACTOR_GENERATION: frozen,
            REFERENCE_INFERENCE: frozen,
            ACTOR_TRAINING: state_spec(job.model, job.dtype, counters, optimizer=True),
        },
        is_live=is_live,
    )


def _links(job: Job) -> LinkRates:
    """What the job file says of its links; the rest by the kind of its devices."""
    usual = EMULATED if job.cluster.device.kind == "cpu" else LinkRates()
    return replace(usual, **job.cluster.links.model_dump(exclude_none=True))


def config_of(job: Job, states: Mapping[str, StateSpec], *, is_live: bool = False) -> JobConfig:
    """A job whose model-stages have this logical state."""
    return JobConfig(
        algorithm="grpo",
        mode="sync",
        policy=job.policy,
        first={name: first_plan(name, choice) for name, choice in job.plan.items()},
        states=states,
        trains=ACTOR_TRAINING,
        generates=ACTOR_GENERATION,
        num_kv_heads=job.model.num_kv_heads,
        node_of={device: job.cluster.node_of(device) for device in range(job.cluster.num_devices)},
        prior=NativePricing.of(job, states, ACTOR_GENERATION),
        links=_links(job),
        num_steps=job.steps,
        pool_is_live=is_live or job.availability is not None,
        checkpoint=job.checkpoint,
        script={entry.step: entry for entry in job.transitions},
    )
