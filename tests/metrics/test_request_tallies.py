"""What the API counts of its requests: by template, status and time, and never by what a caller makes up."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from nereus.metrics.requests import BOUNDS_S, UNMATCHED, RequestTallies

PLAN = ("GET", "/api/v1/plan")


@given(st.lists(st.floats(0, 20)))
def test_buckets_count_the_requests_up_to_each_bound(seconds: list[float]) -> None:
    tallies = RequestTallies((PLAN,))
    for each in seconds:
        tallies.count(*PLAN, 200, each)
    found = tallies.cumulative(PLAN)
    assert found[-1] == ("+Inf", len(seconds))
    assert found[:-1] == [(str(bound), sum(each <= bound for each in seconds)) for bound in BOUNDS_S]
    assert sum(bisect_left(BOUNDS_S, each) == len(BOUNDS_S) for each in seconds) == len(seconds) - found[-2][1]


def test_what_a_caller_makes_up_is_counted_together() -> None:
    tallies = RequestTallies((PLAN,))
    for method, route in (("GET", "/made/up"), ("BREW", "/api/v1/plan"), ("GET", UNMATCHED)):
        tallies.count(method, route, 404, 0.001)
    assert dict(tallies.counts) == {(UNMATCHED, UNMATCHED, "4xx"): 3}
