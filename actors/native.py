"""Builds what a worker process owns. Imported by workers only: it loads torch."""

from __future__ import annotations

import time

import torch

from actors.rendezvous import connect
from actors.worker import WorkerSpec
from nereus.rl.endpoint import NativeEndpoint
from nereus.rl.warm_up import warm_up
from nereus.rl.weights import RandomWeights, SafetensorsWeights, WeightSource
from nereus.transport.abort import AbortWatch
from nereus.transport.communicators import Communicators
from nereus.transport.memory import DeviceMemory

PRODUCT_SIZE = 256
"""Rows of the timed product: large enough for the kernel's best rate, 2 ms on a slow core."""

NUM_PRODUCTS = 8
"""Products that are timed; the best counts, since only disturbances make one slower."""


def communicator_pool(spec: WorkerSpec, timeout_s: float) -> Communicators:
    """The pool of this process, on its device: CUDA where Ray gave the process a GPU."""
    return Communicators(connect(spec.rendezvous, timeout_s), spec.endpoint, _device(spec), timeout_s)


def native_endpoint(spec: WorkerSpec, pool: Communicators) -> NativeEndpoint:
    """The endpoint of one device, warmed up: a GPU, or a paced CPU device."""
    torch.set_num_threads(1)
    job, declared = spec.job, spec.job.cluster.device
    warm_up(spec.endpoint, pool.device, job.dtype)
    capacity = declared.memory
    if capacity is None:
        capacity = torch.cuda.get_device_properties(pool.device).total_memory
    return NativeEndpoint(
        endpoint=spec.endpoint,
        device=pool.device,
        memory=DeviceMemory(str(spec.device), capacity),
        speed=declared.speed,
        shape=job.model,
        communicators=pool,
        weights=_weights(spec),
    )


def abort_watch(spec: WorkerSpec, pool: Communicators) -> AbortWatch:
    """The thread that unblocks this process's collectives when the controller asks for it."""
    watch = AbortWatch(lambda: connect(spec.rendezvous, pool.timeout_s), spec.endpoint, pool.abort)
    watch.start()
    return watch


def device_flops(device: torch.device, dtype: str) -> float:
    """FLOP/s of a square product: the peak that efficiencies are fractions of. On a CPU, of its own CPU time."""
    a = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, dtype=getattr(torch, dtype), device=device)
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    best = float("inf")
    for _ in range(NUM_PRODUCTS):
        began = clock()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, clock() - began)
    return 2.0 * PRODUCT_SIZE**3 / best


def _device(spec: WorkerSpec) -> torch.device:
    return torch.device("cuda", 0) if spec.job.cluster.device.kind == "gpu" else torch.device("cpu")


def _weights(spec: WorkerSpec) -> WeightSource:
    if spec.weights is None:
        return RandomWeights(spec.job.seed, spec.job.model)
    return SafetensorsWeights(spec.weights)
