"""A real Prometheus that scrapes one target each second, with the alert rules of the chart."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

from tests.api.served import ask
from tests.metrics.queries import Shown, filled
from tests.metrics.tools import found

RULES = Path(__file__).parents[2] / "helm" / "nereus" / "files" / "alerts.yaml"
PROMETHEUS = found("prometheus")
STARTS_WITHIN_S = 30.0

OPEN: dict[str, Any] = {"job_name": "nereus"}
"""What is scraped without a token."""


@dataclass(frozen=True)
class Prometheus:
    """One server, asked over HTTP."""

    url: str

    def instant(self, query: str, at_s: float) -> list[float]:
        """The value of each series at a time."""
        return [float(series["value"][1]) for series in self._data("query", query=query, time=at_s)["result"]]

    def over(self, query: str, begin_s: float, end_s: float) -> list[tuple[dict[str, str], list[float]]]:
        """Labels and values of each series, one value a second."""
        data = self._data("query_range", query=query, start=begin_s, end=end_s, step=1)
        return [(s["metric"], [float(value) for _, value in s["values"]]) for s in data["result"]]

    def without_data(self, queries: Iterable[Shown], begin_s: float, end_s: float, excused: Iterable[str] = ()) -> list[str]:
        """The queries of panels that show no number for this time; what names one of `excused` need only be there."""
        names, empty = tuple(excused), []
        for query in queries:
            asked = filled(query.expr, rate_interval="15s", range=f"{int(end_s - begin_s)}s")
            values = (
                self.instant(asked, end_s)
                if query.kind == "stat"
                else [value for _, series in self.over(asked, begin_s, end_s) for value in series]
            )
            is_excused = any(name in query.expr for name in names)
            if not values or (not is_excused and not finite(values)):
                empty.append(f"{query.board}: {query.panel}: {query.expr}: {values[:3]}")
        return empty

    def fired(self, begin_s: float, end_s: float) -> list[str]:
        """The alerts that fired in this time."""
        return [labels["alertname"] for labels, _ in self.over('ALERTS{alertstate="firing"}', begin_s, end_s)]

    def rules(self) -> list[dict[str, Any]]:
        """All alert rules, as the server sees them."""
        return [rule for group in self._data("rules")["groups"] for rule in group["rules"]]

    def last_scrape_s(self, begin_s: float, end_s: float) -> float:
        """When the target answered for the last time."""
        times = self._data("query_range", query="up == 1", start=begin_s, end=end_s, step=1)["result"][0]["values"]
        return float(times[-1][0])

    def _data(self, verb: str, **parameters: Any) -> Any:
        reply = ask(f"{self.url}/api/v1/{verb}?{urlencode(parameters)}")
        assert reply.status == 200, reply.text
        return json.loads(reply.text)["data"]


def config(target_url: str, scrape: dict[str, Any]) -> str:
    """Every second, the target in place of the one that `scrape` names."""
    whole = {**scrape, "scrape_interval": "1s", "static_configs": [{"targets": [urlsplit(target_url).netloc]}]}
    return yaml.safe_dump({"global": {"evaluation_interval": "1s"}, "rule_files": [str(RULES)], "scrape_configs": [whole]})


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def scraping(target_url: str, folder: Path, scrape: dict[str, Any] = OPEN) -> Iterator[Prometheus]:
    """A server in `folder` that scrapes the target until the context ends."""
    assert PROMETHEUS is not None
    folder.mkdir()
    port, file = free_port(), folder / "prometheus.yml"
    file.write_text(config(target_url, scrape))
    server = Prometheus(f"http://127.0.0.1:{port}")
    options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([PROMETHEUS, *options], stdout=log, stderr=log)
    try:
        end = time.monotonic() + STARTS_WITHIN_S
        while not _is_ready(server):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, "it is not ready"
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(server: Prometheus) -> bool:
    try:
        return ask(f"{server.url}/-/ready").status == 200
    except OSError:
        return False


def finite(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
