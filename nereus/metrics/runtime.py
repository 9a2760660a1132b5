"""Whether what is told can be relied on, and the news that it is made from."""

from __future__ import annotations

from nereus.control.events import Verb
from nereus.metrics.exposition import Described, Process, Samples, Source, one

DONE = {"yes": True, "no": False}


def _commands(source: Source) -> Samples:
    counts = source.tallies.commands
    return [((verb, name), counts[verb, done]) for verb in map(str, Verb) for name, done in DONE.items()]


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
    Described(
        "Runtime",
        "counter",
        "nereus_job_controller_losses_total",
        "How often the controller of the job stopped answering, since this process began to ask.",
        one(lambda s: s.num_losses),
    ),
    Described(
        "Runtime",
        "gauge",
        "nereus_job_paused",
        "1 while an operator holds the loop at its boundaries, else 0.",
        one(lambda s: float(s.projection.is_paused)),
    ),
    Described(
        "Runtime",
        "counter",
        "nereus_commands_total",
        "Commands of operators that were answered, by verb and whether they were done.",
        _commands,
        ("verb", "done"),
    ),
)
