"""Metrics on their way to Prometheus: how one is described, and the text that a scrape gets.

Described + Source -> read -> family -> text exposition format
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector, CollectorRegistry

from nereus.runtime.projection import Projection
from nereus.runtime.tallies import Tallies

CONTENT_TYPE = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True)
class Source:
    """What a scrape reads."""

    projection: Projection
    is_connected: bool
    """Whether the controller answered the latest question."""

    @property
    def tallies(self) -> Tallies:
        return self.projection.tallies


Value = float | tuple[float, float]
"""A number; of a summary, how many there were and what they add up to."""

Samples = Iterable[tuple[tuple[str, ...], Value]]
"""Label values, and the value under them."""


@dataclass(frozen=True, slots=True)
class Described:
    """One metric."""

    group: str
    kind: Literal["gauge", "counter", "summary", "info"]
    name: str
    """As it is queried; a summary adds `_count` and `_sum`."""
    meaning: str
    read: Callable[[Source], Samples]
    labels: tuple[str, ...] = ()


def text(metrics: Sequence[Described], source: Source) -> bytes:
    """All families of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(metrics, source))
    return generate_latest(registry)


class _Scrape(Collector):
    """What the client library asks for families."""

    def __init__(self, metrics: Sequence[Described], source: Source) -> None:
        self._metrics, self._source = metrics, source

    def collect(self) -> Iterator[Metric]:
        return (_family(metric, metric.read(self._source)) for metric in self._metrics)


def _family(metric: Described, samples: Samples) -> Metric:
    name, labels = metric.name, metric.labels
    if metric.kind == "info":
        info = InfoMetricFamily(name.removesuffix("_info"), metric.meaning)
        for values, _ in samples:
            info.add_metric((), dict(zip(labels, values, strict=True)))
        return info
    if metric.kind == "summary":
        summary = SummaryMetricFamily(name, metric.meaning, labels=labels)
        for values, value in samples:
            assert isinstance(value, tuple)
            summary.add_metric(values, count_value=int(value[0]), sum_value=value[1])
        return summary
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(name, metric.meaning, labels=labels)
    else:
        family = GaugeMetricFamily(name, metric.meaning, labels=labels)
    for values, value in samples:
        assert not isinstance(value, tuple)
        family.add_metric(values, value)
    return family
