"""What a run adds up to: where its time went, what it made, what it cost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.sim.adaptive import Adaptive
from nereus.sim.outcome import MOST_POINTS, Cause, Ledger, Span, outcome
from tests.sim.tiny import inputs

stretches = st.lists(st.tuples(st.floats(0.1, 50.0), st.sampled_from(list(Cause)), st.sampled_from("ab")), min_size=1)


@given(stretches, st.floats(0.0, 1.0))
def test_time_by_cause_adds_up_to_the_run_and_spans_tile_it(spent: list[tuple[float, Cause, str]], share: float) -> None:
    """Brute force: every stretch by itself, cut at the end of the run."""
    ledger, now = Ledger(), 0.0
    for seconds, cause, what in spent:
        ledger.spend(now, now + seconds, cause, what)
        now += seconds
    end = share * now
    found = outcome("p", ledger, end, None)
    wanted, at = dict.fromkeys(Cause, 0.0), 0.0
    for seconds, cause, _ in spent:
        wanted[cause] += max(min(at + seconds, end) - at, 0.0)
        at += seconds
    assert found.spent_s == pytest.approx(wanted, abs=1e-6)
    assert sum(found.spent_s.values()) == pytest.approx(end, abs=1e-6)
    edges = [0.0, *(span.end_s for span in found.spans)]
    assert [span.begin_s for span in found.spans] == edges[:-1]
    assert edges[-1] == pytest.approx(end)
    assert all((a.cause, a.what) != (b.cause, b.what) for a, b in pairwise(found.spans))


def test_stretches_that_touch_and_are_alike_are_one_span() -> None:
    ledger = Ledger()
    ledger.spend(0.0, 1.0, Cause.STEPS, "a")
    ledger.spend(1.0, 2.0, Cause.STEPS, "a")
    ledger.spend(2.0, 2.0, Cause.TRANSITION, "nothing takes no time")
    ledger.spend(2.0, 3.0, Cause.STEPS, "b")
    assert ledger.spans == [Span(0.0, 2.0, Cause.STEPS, "a"), Span(2.0, 3.0, Cause.STEPS, "b")]


def test_steps_that_are_undone_count_as_lost_and_their_tokens_as_never_made() -> None:
    ledger = Ledger()
    for step in range(3):
        ledger.spend(float(step), step + 1.0, Cause.STEPS, "a")
        ledger.steps.append((1.0, 100.0))
    ledger.undo(2)
    found = outcome("p", ledger, 3.0, None)
    assert (found.steps, found.response_tokens) == (1, 100.0)
    assert (found.spent_s[Cause.STEPS], found.spent_s[Cause.REDONE]) == (1.0, 2.0)
    assert found.throughput == pytest.approx(100.0 / 3.0)


def test_cost_is_that_of_the_devices_that_were_there() -> None:
    ledger = Ledger(device_s=4 * 1800.0)
    assert outcome("p", ledger, 1800.0, 2.5).cost == pytest.approx(4 * 0.5 * 2.5)
    assert outcome("p", ledger, 1800.0, None).cost is None


def test_progress_of_a_long_run_is_thinned_and_stays_in_order() -> None:
    ledger = Ledger()
    for step in range(10 * MOST_POINTS):
        ledger.spend(step * 2.0, step * 2.0 + 2.0, Cause.STEPS, "a")
        ledger.steps.append((2.0, 1.0))
    assert MOST_POINTS / 2 <= len(ledger.progress) <= MOST_POINTS
    assert ledger.progress[0] == (0.0, 0)
    assert all(time == 2.0 * done for time, done in ledger.progress)
    gaps = {b[1] - a[1] for a, b in pairwise(ledger.progress)}
    assert max(gaps) <= 2 * 10 * MOST_POINTS / len(ledger.progress)


def test_a_run_is_worth_its_steps_and_its_time_adds_up() -> None:
    """A real run: tokens are samples times their mean, seconds those of the trace, and each transition a fast step."""
    found = Adaptive(inputs().scenario()).run()
    assert found.duration_s == 300.0
    assert sum(found.spent_s.values()) == pytest.approx(300.0, abs=1e-6)
    assert found.response_tokens == pytest.approx(found.steps * 64 * 8 * 2048)
    assert found.transitions
    assert {event.cause for event in found.spans} >= {Cause.STEPS, Cause.TRANSITION}
    assert [done for _, done in found.progress] == sorted(done for _, done in found.progress)
