"""The process of one rank: it holds every contestant and runs a job on the one that is named.

    cluster -> pipe -> serve: prepare, barrier, move on the clock, check, clear -> Outcome -> pipe

A contestant that cannot be made here (a package is absent) is reported with the reason, and is not called.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.moving.contest import Contestant, Job, Outcome
from benchmarks.moving.dcp import TorchDcp
from benchmarks.moving.gloo import RawGloo
from benchmarks.moving.live import Live
from benchmarks.moving.megatron import MegatronDistCheckpoint
from benchmarks.moving.shapes import NUM_RANKS
from benchmarks.moving.universal import UniversalCheckpoint

COLLECTIVE_S = timedelta(seconds=300)
"""Bound of one wait for the other ranks; the slowest step, a universal conversion, takes seconds."""

Request = tuple[str, Job]


def serve(pipe: Connection, rank: int, port: int, folder: str) -> None:
    """Answer requests until the pipe closes or None comes.

    It is a session of its own, so that an interrupt reaches the parent only, which then ends all that was started here.
    Temporary files go to `folder`, which the parent removes.
    """
    os.setsid()
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS), "TMPDIR": folder})
    tempfile.tempdir = None
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=COLLECTIVE_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS, timeout=COLLECTIVE_S)
    contestants, absent = _contestants(rank, store)
    pipe.send((True, absent))
    with suppress(EOFError):
        while (request := pipe.recv()) is not None:
            name, job = request
            try:
                pipe.send((True, _run(contestants[name], job)))
            except Exception as error:
                pipe.send((False, f"{name} on rank {rank}, {job.source} -> {job.target}: {type(error).__name__}: {error}"))
    dist.destroy_process_group()


def _contestants(rank: int, store: TCPStore) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Those that can be made, and why the others cannot."""
    makers: dict[str, Callable[[], Contestant]] = {
        "nereus": lambda: Live(rank, store),
        "dcp": TorchDcp,
        "raw_gloo": RawGloo,
        "ucp": UniversalCheckpoint,
        "megatron": MegatronDistCheckpoint,
    }
    made: dict[str, Contestant] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except ImportError as error:
            absent[name] = f"not installed ({error}); pip install '.[bench]'"
    return made, absent


def _run(contestant: Contestant, job: Job) -> Outcome:
    try:
        contestant.prepare(job)
        dist.barrier()
        start = time.perf_counter()
        contestant.move()
        seconds = time.perf_counter() - start
        dist.barrier()
        return replace(contestant.check(), seconds=seconds)
    finally:
        contestant.clear()
