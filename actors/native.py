"""Builds the native endpoint of a worker process. Imported by workers only: it loads torch."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from actors.worker import WorkerSpec
from nereus.rl.endpoint import NativeEndpoint
from nereus.rl.weights import RandomWeights, SafetensorsWeights, WeightSource
from nereus.transport.communicators import Communicators
from nereus.transport.memory import DeviceMemory


def native_endpoint(spec: WorkerSpec, timeout_s: float) -> NativeEndpoint:
    """The endpoint of one device: CUDA where Ray gave the process a GPU, else a paced CPU device."""
    torch.set_num_threads(1)
    job, declared = spec.job, spec.job.cluster.device
    host, port = spec.rendezvous
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    gpu = declared.kind == "gpu"
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    capacity = declared.memory
    if capacity is None:
        capacity = torch.cuda.get_device_properties(device).total_memory
    return NativeEndpoint(
        endpoint=spec.endpoint,
        device=device,
        memory=DeviceMemory(str(spec.device), capacity),
        speed=None if gpu else declared.speed,
        shape=job.model,
        communicators=Communicators(store, spec.endpoint, device, timeout_s),
        weights=_weights(spec),
    )


def _weights(spec: WorkerSpec) -> WeightSource:
    if spec.weights is None:
        return RandomWeights(spec.job.seed, spec.job.model)
    return SafetensorsWeights(spec.weights)
