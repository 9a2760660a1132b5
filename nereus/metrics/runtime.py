"""Whether what is told can be relied on, and the news that it is made from."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Process, Source, one

OF_PROCESS: tuple[Described[Process], ...] = (
    Described(
        "Runtime",
        "gauge",
        "nereus_controller_up",
        "1 while the controllers of all jobs answer, else 0: some of what follows is then old.",
        one(lambda p: float(p.is_connected)),
    ),
    Described("Runtime", "gauge", "nereus_jobs", "Jobs that are served here.", one(lambda p: p.num_jobs)),
)

OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Runtime",
        "gauge",
        "nereus_job_up",
        "1 while the controller of the job answers, else 0: what is told of the job is then old.",
        one(lambda s: float(s.is_connected)),
    ),
    Described(
        "Runtime", "counter", "nereus_news_total", "News that the controller has told.", one(lambda s: s.tallies.news)
    ),
)
