"""What runs: the version of this process, and what each job is."""

from __future__ import annotations

from math import nan

from nereus import __version__
from nereus.metrics.exposition import Described, Process, Samples, Source, one

UNKNOWN = "unknown"
"""Of a job that has told nothing yet."""


def _described(source: Source) -> Samples:
    known = source.projection.described
    return [((known.algorithm, known.mode) if known else (UNKNOWN, UNKNOWN), 1)]


def _planned_steps(source: Source) -> float:
    known = source.projection.described
    return nan if known is None or known.num_steps is None else known.num_steps


OF_PROCESS: tuple[Described[Process], ...] = (
    Described(
        "Identity",
        "info",
        "nereus_build_info",
        "The version that runs; always 1.",
        lambda _: [((__version__,), 1)],
        ("version",),
    ),
)

OF_JOBS: tuple[Described[Source], ...] = (
    Described("Identity", "info", "nereus_job_info", "What the job is; always 1.", _described, ("algorithm", "mode")),
    Described(
        "Identity",
        "gauge",
        "nereus_job_parameters",
        "Parameters of the model that is trained; NaN before the start.",
        one(lambda s: s.projection.described.num_parameters if s.projection.described else nan),
    ),
    Described(
        "Identity",
        "gauge",
        "nereus_job_planned_steps",
        "RL steps of the job; NaN where it has no end.",
        one(_planned_steps),
    ),
)
