"""Requests that are really served, as the API's own metrics count them."""

from __future__ import annotations

from nereus.metrics.requests import UNMATCHED
from tests.api.served import JOB, Api
from tests.metrics.test_metrics import scraped

PLAN = ("GET", "/api/v1/plan")


def test_served_requests_are_counted_by_template_and_class_of_status(api: Api) -> None:
    first = api.post("/api/v1/replans", {}).body["id"]
    for path in (f"/api/v1/replans/{first}", "/api/v1/replans/nobody", f"/api/v1/plan?job={JOB}", "/made/up"):
        api.get(path)
    series = scraped(api.get("/metrics").text)

    def count(method: str, route: str, status: str) -> float:
        return series["nereus_api_requests_total", (("method", method), ("route", route), ("status", status))]

    assert count("POST", "/api/v1/replans", "2xx") == 1
    assert (count("GET", "/api/v1/replans/{id}", "2xx"), count("GET", "/api/v1/replans/{id}", "4xx")) == (1, 1)
    assert count(*PLAN, "2xx") == 1
    assert count(UNMATCHED, UNMATCHED, "4xx") == 1
    assert count("GET", "/livez", "2xx") == 0
    assert count("GET", "/metrics", "2xx") >= 1
    took = series["nereus_api_request_seconds_count", (("method", "GET"), ("route", "/api/v1/replans/{id}"))]
    assert took == 2
    assert "made" not in "".join(str(labels) for _, labels in series)
