"""Metrics on their way to Prometheus: how one is described, and the text that a scrape gets.

    Described + Source (one job), or Process -> read -> family -> text exposition format

Everything that is told of a job has its name as the label `nereus_job`; what is told of the process itself has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector, CollectorRegistry

from nereus.metrics.requests import RequestTallies
from nereus.runtime.projection import Projection
from nereus.runtime.standing import Standing
from nereus.runtime.tallies import Tallies

CONTENT_TYPE = CONTENT_TYPE_LATEST

JOB_LABEL = "nereus_job"
"""Not `job`: Prometheus puts a label of that name on every target."""


@dataclass(frozen=True, slots=True)
class Source:
    """One job, as a scrape reads it."""

    job: str
    """Its name: the label `nereus_job` of all that is told of it."""
    projection: Projection
    is_connected: bool
    """Whether its controller answered the latest question."""
    num_losses: int = 0
    """How often its controller stopped answering, since this process began to ask."""

    @property
    def tallies(self) -> Tallies:
        return self.projection.tallies


@dataclass(frozen=True, slots=True)
class Process:
    """The process that is scraped, whatever its jobs are."""

    is_connected: bool
    """Whether every controller answered the latest question."""
    num_jobs: int
    requests: RequestTallies
    standing: Standing | None = None
    """Of the controller of several jobs; None where it is one run that is served."""


Of = TypeVar("Of", Source, Process)

Value = float | tuple[float, float] | tuple[Sequence[tuple[str, float]], float]
"""A number; of a summary, how many there were and what they add up to; of a histogram, how many up to each bound (a text,
the last one +Inf), and what they add up to."""

Samples = Iterable[tuple[tuple[str, ...], Value]]
"""Label values, and the value under them."""

Kind = Literal["gauge", "counter", "summary", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Described(Generic[Of]):
    """One metric."""

    group: str
    kind: Kind
    name: str
    """As it is queried; a summary adds `_count` and `_sum`, a histogram also `_bucket`."""
    meaning: str
    read: Callable[[Of], Samples]
    labels: tuple[str, ...] = ()
    """Without `nereus_job`."""

    def series(self) -> tuple[str, ...]:
        """The names under which it can be queried."""
        ends = {"summary": ("_count", "_sum"), "histogram": ("_count", "_sum", "_bucket")}.get(self.kind, ("",))
        return tuple(self.name + end for end in ends)


def one(value: Callable[[Of], Value]) -> Callable[[Of], Samples]:
    """A metric without labels."""
    return lambda source: [((), value(source))]


def text(
    of_jobs: Sequence[Described[Source]],
    jobs: Sequence[Source],
    of_process: Sequence[Described[Process]],
    process: Process,
) -> bytes:
    """All families of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(of_jobs, jobs, of_process, process))
    return generate_latest(registry)


class _Scrape(Collector):
    """What the client library asks for families."""

    def __init__(
        self,
        of_jobs: Sequence[Described[Source]],
        jobs: Sequence[Source],
        of_process: Sequence[Described[Process]],
        process: Process,
    ) -> None:
        self._of_jobs, self._jobs, self._of_process, self._process = of_jobs, jobs, of_process, process

    def collect(self) -> Iterator[Metric]:
        for of_process in self._of_process:
            yield _family(of_process, of_process.labels, of_process.read(self._process))
        for of_job in self._of_jobs:
            samples = [((job.job, *values), value) for job in self._jobs for values, value in of_job.read(job)]
            yield _family(of_job, (JOB_LABEL, *of_job.labels), samples)


def _family(metric: Described[Source] | Described[Process], labels: tuple[str, ...], samples: Samples) -> Metric:
    name, meaning = metric.name, metric.meaning
    family: Metric
    match metric.kind:
        case "info":
            family = info = InfoMetricFamily(name.removesuffix("_info"), meaning)
            for values, _ in samples:
                info.add_metric((), dict(zip(labels, values, strict=True)))
        case "summary":
            family = summary = SummaryMetricFamily(name, meaning, labels=labels)
            for values, value in samples:
                assert isinstance(value, tuple)
                assert isinstance(value[0], int | float)
                summary.add_metric(values, count_value=int(value[0]), sum_value=value[1])
        case "histogram":
            family = histogram = HistogramMetricFamily(name, meaning, labels=labels)
            for values, value in samples:
                assert isinstance(value, tuple)
                assert not isinstance(value[0], int | float)
                histogram.add_metric(values, buckets=list(value[0]), sum_value=value[1])
        case "counter" | "gauge":
            plain = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = numbers = plain(name, meaning, labels=labels)
            for values, value in samples:
                assert not isinstance(value, tuple)
                numbers.add_metric(values, value)
    return family
