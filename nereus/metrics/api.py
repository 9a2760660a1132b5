"""What the API was asked and how long it took: of this process, so counted from its start."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Process, Samples
from nereus.metrics.requests import STATUS_CLASSES, UNMATCHED


def _places(process: Process) -> list[tuple[str, str]]:
    return [*process.requests.routes, (UNMATCHED, UNMATCHED)]


def _requests(process: Process) -> Samples:
    counts = process.requests.counts
    return [((*where, c), counts[(*where, c)]) for where in _places(process) for c in STATUS_CLASSES]


def _seconds(process: Process) -> Samples:
    requests = process.requests
    return [(where, (requests.cumulative(where), requests.sums_s.get(where, 0.0))) for where in _places(process)]


OF_PROCESS: tuple[Described[Process], ...] = (
    Described(
        "API",
        "counter",
        "nereus_api_requests_total",
        "Requests that were answered, by route and class of status; refused ones are `unmatched`.",
        _requests,
        ("method", "route", "status"),
    ),
    Described(
        "API",
        "histogram",
        "nereus_api_request_seconds",
        "From a request to the end of its answer.",
        _seconds,
        ("method", "route"),
    ),
)
