"""The processes that hold the state, and the folder in memory that some of them go through.

Entering starts both, leaving ends both, whatever happened in between: nothing is left in /dev/shm or among the processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import TracebackType
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from actors.options import WORKER_ENVIRONMENT
from benchmarks.moving.contest import Job, Outcome
from benchmarks.moving.rank import serve
from benchmarks.moving.shapes import NUM_RANKS

MEMORY = Path("/dev/shm")
"""Where folders are kept in memory: the best case for whoever goes through files."""

ANSWER_S = 600.0
"""Bound of one job of one contestant; the slowest takes seconds."""

START_S = timedelta(seconds=120)
"""Bound of the start: every process imports torch and what peers are installed."""

END_S = 2.0
"""How long idle ranks may take to end by themselves; busy ones, after a failure or an interrupt, are killed then."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One move by one contestant, over all ranks."""

    seconds: float
    """The slowest rank's, from the barrier to its end."""
    digest_s: float
    peak_extra_bytes: int
    wrong: tuple[str, ...]


class Cluster:
    """Rank processes that share a rendezvous store."""

    def __init__(self) -> None:
        self.absent: Mapping[str, str] = {}
        """Contestants that cannot run here, and why."""
        self._pipes: dict[int, Connection] = {}
        self._processes: list[BaseProcess] = []

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            where = MEMORY if MEMORY.is_dir() else None
            folder = TemporaryDirectory(prefix="nereus-bench-", dir=where, ignore_cleanup_errors=True)
            self._folder = Path(stack.enter_context(folder))
            stack.callback(self._end)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def move(self, name: str, jobs: Mapping[int, Job]) -> Moved:
        """Let a contestant move the state of one pair once. Raises RuntimeError with what a rank ended in."""
        folder = mkdtemp(dir=self._folder)
        for rank, job in jobs.items():
            self._pipes[rank].send((name, replace(job, folder=folder)))
        outcomes: list[Outcome] = self._answers()
        shutil.rmtree(folder)
        return Moved(
            seconds=max(outcome.seconds for outcome in outcomes),
            digest_s=max(outcome.digest_s for outcome in outcomes),
            peak_extra_bytes=max(outcome.peak_extra_bytes for outcome in outcomes),
            wrong=tuple(f"{key} at rank {rank}" for rank, outcome in enumerate(outcomes) for key in outcome.wrong),
        )

    def _start(self) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=START_S)
        os.environ.update(WORKER_ENVIRONMENT)  # For all contestants: what a worker of Nereus runs with.
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "benchmarks.moving.rank"])
        for rank in range(NUM_RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, rank, self._store.port, str(self._folder)))
            process.start()
            theirs.close()
            self._pipes[rank] = ours
            self._processes.append(process)
        self.absent = {name: why for absent in self._answers() for name, why in absent.items()}

    def _answers(self) -> list[Any]:
        """The answer of each rank; the first failure ends the wait, since the other ranks may then never answer."""
        ranks = {pipe: rank for rank, pipe in self._pipes.items()}
        answers: dict[int, Any] = {}
        while len(answers) < len(ranks):
            ready = wait([pipe for pipe, rank in ranks.items() if rank not in answers], ANSWER_S)
            if not ready:
                raise RuntimeError(f"ranks {sorted(set(self._pipes) - set(answers))} did not answer within {ANSWER_S} s")
            for pipe in ready:
                rank = ranks[pipe]  # type: ignore[index]
                try:
                    fine, answers[rank] = self._pipes[rank].recv()
                except EOFError:
                    raise RuntimeError(f"the process of rank {rank} ended") from None
                if not fine:
                    raise RuntimeError(answers[rank])
        return [answers[rank] for rank in sorted(answers)]

    def _end(self) -> None:
        for pipe in self._pipes.values():
            with suppress(OSError):
                pipe.send(None)
        deadline = time.monotonic() + END_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            # The rank and whatever it started itself; a peer forks writers and a manager.
            if process.pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            process.close()
        for pipe in self._pipes.values():
            pipe.close()
