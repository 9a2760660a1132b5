"""The projection: by values worked out by hand, and by folding random news beside plain counting."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.api.schemas import CheckpointOut, DecisionOut, DeviceOut, PlanOut, Schema, StepOut, TransitionOut
from nereus.control.effects import Decision, DevicesChanged, News, Started, TransitionRecord, Waited
from nereus.control.report import StepReport
from nereus.policy.admission import Code
from nereus.runtime.projection import Projection, View
from tests.api.news import MIB, STORY, decision, plan, pool, restored, saved, started, step, transition

ALL = 10**6


def folded(news: Sequence[News]) -> Projection:
    projection = Projection()
    for item in news:
        projection.fold(item)
    return projection


def since(projection: Projection) -> dict[int, tuple[str, int]]:
    return {view["device"]: (view["state"], view["since_step"]) for view in projection.devices(None, ALL)}


def test_nothing_is_known_before_the_first_news() -> None:
    empty = Projection()
    assert (empty.plan_view(), empty.step_view()) == (None, None)
    assert empty.decisions(None, 5) == empty.transitions(None, 5) == empty.devices(None, 5) == []


def test_first_plan_is_in_force_since_step_0() -> None:
    found = folded([started()]).plan_view()
    assert found is not None
    assert (found["epoch"], found["since_step"]) == (0, 0)
    assert found["stages"]["actor_training"] == {
        "tp": 2,
        "pp": 1,
        "dp": 1,
        "devices": [0, 1],
        "micro_batch": 1,
        "recompute": False,
    }


def test_device_keeps_its_step_while_its_state_and_endpoint_stay() -> None:
    projection = folded([pool(0, {0: "d0.0", 1: "d1.0"}), pool(3, {0: "d0.0", 1: "d1.0", 2: "d2.0"})])
    assert since(projection) == {0: ("ready", 0), 1: ("ready", 0), 2: ("ready", 3)}
    projection.fold(pool(5, {0: "d0.0", 1: "d1.0", 2: "d2.0"}, {1: 7}))
    assert since(projection) == {0: ("ready", 0), 1: ("leaving", 5), 2: ("ready", 3)}
    projection.fold(pool(6, {0: "d0.0", 1: "d1.0"}, {1: 7}))
    assert since(projection) == {0: ("ready", 0), 1: ("leaving", 5)}


def test_device_that_comes_back_under_a_new_endpoint_is_ready_since_then() -> None:
    projection = folded([pool(0, {0: "d0.0"}), pool(4, {0: "d0.1"})])
    assert since(projection) == {0: ("ready", 4)}
    gone = folded([pool(0, {0: "d0.0"}), pool(2, {}), pool(4, {0: "d0.0"})])
    assert since(gone) == {0: ("ready", 4)}


def test_device_serves_the_stages_of_the_plan_in_force() -> None:
    wide = replace(transition(1), plan=plan(1, training="tp2 dp2", generation="tp1 dp1"))
    projection = folded([pool(0, {d: f"d{d}.0" for d in range(5)}), started(), wide])
    stages = {view["device"]: view["model_stages"] for view in projection.devices(None, ALL)}
    training = ["actor_training"]
    assert stages == {0: ["actor_generation", "actor_training"], 1: training, 2: training, 3: training, 4: []}


def test_decisions_of_an_operator_are_found_by_the_command() -> None:
    asked = [decision(code, cycle=2, command="a") for code in (Code.REJECTED_NO_GAIN, Code.ADMITTED)]
    later = decision(cycle=4, command="b")
    projection = folded([started(), decision(cycle=1), *asked, decision(cycle=3), later])
    assert [d["number"] for d in projection.decided_for("a", ALL)] == [2, 3]
    assert [d["number"] for d in projection.decided_for("b", ALL)] == [5]
    assert projection.decided_for("c", ALL) == []


NUMBER = st.floats(allow_nan=True, allow_infinity=True, width=32)
SECONDS = st.floats(0, 100)
DEVICES = st.dictionaries(st.integers(0, 5), st.sampled_from(["a.0", "a.1", "b.0"]), max_size=6)


@st.composite
def pools(draw: st.DrawFn) -> DevicesChanged:
    ready = draw(DEVICES)
    leaving = draw(st.sets(st.sampled_from(sorted(ready)))) if ready else set()
    return pool(draw(st.integers(0, 20)), ready, {device: draw(st.integers(0, 20)) for device in leaving})


REPORTS = st.builds(
    step,
    st.integers(1, 50),
    reward=NUMBER,
    loss=NUMBER,
    kl=NUMBER,
    grad_norm=NUMBER,
    response_tokens_mean=NUMBER,
    step_s=SECONDS,
    late_s=SECONDS,
    num_samples=st.integers(1, 9),
    stage_s=st.dictionaries(st.sampled_from(["actor_generation", "actor_training", "weight_sync"]), SECONDS),
)
DECISIONS = st.builds(
    decision,
    st.sampled_from(Code),
    cycle=st.integers(1, 4),
    delta_s=NUMBER,
    l_tran_s=SECONDS,
    command=st.sampled_from([None, "a"]),
)
TRANSITIONS = st.builds(transition, st.integers(1, 9), predicted_s=SECONDS)
NEWS = st.lists(st.one_of(st.builds(started), pools(), REPORTS, DECISIONS, TRANSITIONS), max_size=25)


@given(NEWS)
def test_projection_of_any_news_counts_what_plain_counting_counts(news: list[News]) -> None:
    projection, tallies = folded(news), folded(news).tallies
    reports = [n for n in news if isinstance(n, StepReport)]
    decided = [n for n in news if isinstance(n, Decision)]
    changes = [n for n in news if isinstance(n, TransitionRecord)]
    assert (tallies.news, tallies.steps, tallies.transitions) == (len(news), len(reports), len(changes))
    assert tallies.samples == sum(r.num_samples for r in reports)
    assert tallies.step_s == pytest.approx(sum(r.step_s for r in reports))
    for name in ("actor_generation", "actor_training", "weight_sync"):
        assert tallies.stage_s.get(name, 0) == pytest.approx(sum(r.stage_s.get(name, 0) for r in reports))
    assert tallies.decisions == Counter(n.verdict.code.value for n in decided)
    assert tallies.bytes_moved == 4096 * len(changes)
    plans = [n.plan for n in news if isinstance(n, Started | TransitionRecord)]
    assert projection.plan == (plans[-1] if plans else None)
    assert projection.report is (reports[-1] if reports else None)
    assert len(projection.decisions(None, ALL)) == len(decided)


@given(NEWS)
def test_views_of_any_news_are_json_in_the_form_that_the_api_promises(news: list[News]) -> None:
    projection = folded(news)
    pages: list[tuple[type[Schema], list[View]]] = [
        (DecisionOut, projection.decisions(None, ALL)),
        (TransitionOut, projection.transitions(None, ALL)),
        (DeviceOut, projection.devices(None, ALL)),
        (PlanOut, [view for view in [projection.plan_view()] if view is not None]),
        (StepOut, [view for view in [projection.step_view()] if view is not None]),
    ]
    for schema, views in pages:
        for view in views:
            assert json.loads(json.dumps(view, allow_nan=False)) == view
            assert schema.model_validate(view, strict=True).model_dump() == view


@given(NEWS)
def test_devices_are_those_of_the_last_change_of_the_pool(news: list[News]) -> None:
    projection = folded(news)
    changes = [n for n in news if isinstance(n, DevicesChanged)]
    ready, leaving = (changes[-1].ready, changes[-1].leaving) if changes else ({}, {})
    views = projection.devices(None, ALL)
    assert {v["device"]: v["endpoint"] for v in views} == ready
    assert {v["device"]: v["leaves_after_step"] for v in views if v["state"] == "leaving"} == leaving
    assert projection.devices_by_state().total() == len(ready)


@given(st.integers(0, 8), st.none() | st.integers(0, 12), st.integers(1, 10))
def test_page_is_the_newest_numbers_below_its_cursor(count: int, before: int | None, limit: int) -> None:
    projection = folded([decision() for _ in range(count)])
    below = [number for number in range(count, 0, -1) if before is None or number < before]
    assert [view["number"] for view in projection.decisions(before, limit)] == below[:limit]


def test_story_told_in_parts_is_the_same_story() -> None:
    whole, parts = folded(STORY), Projection()
    for item in STORY:
        parts.fold(item)
        parts.devices(None, 1), parts.decisions(None, 1), parts.plan_view()
    assert whole.tallies == parts.tallies
    assert whole.decisions(None, ALL) == parts.decisions(None, ALL)


def test_checkpoints_returns_and_waits_add_up() -> None:
    projection = folded(
        [started(), step(1), step(2), saved(2), step(3), saved(3, None, "no space"), Waited(step=3, seconds=8.0)]
    )
    projection.fold(restored(2, repeated_steps=1))
    tallies, view = projection.tallies, projection.plan_view()
    assert (tallies.saves, tallies.failed_saves, tallies.save_s, tallies.saved_bytes) == (1, 1, 1.0, 4 * MIB)
    assert (tallies.restores, tallies.restore_s, tallies.repeated_steps, tallies.waited_s) == (1, 1.5, 1, 8.0)
    assert view is not None
    assert (view["epoch"], view["since_step"]) == (3, 2)


def test_job_that_goes_on_from_another_run_has_a_checkpoint_that_it_did_not_write() -> None:
    found = folded([restored(2, repeated_steps=0)]).checkpoint_view()
    assert found is not None
    assert (found["step"], found["seconds"], found["size_bytes"], found["restored_after_step"]) == (2, None, 6 * MIB, 2)
    CheckpointOut(**found)
