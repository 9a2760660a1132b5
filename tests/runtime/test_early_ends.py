"""Transitions that end early: whatever fails or dies, and whenever, the job goes on as long as one intact copy is left.

Every fact of a transition x a death or a failure right after it -> the loop is released on whole units that hold the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nereus.control.carrying import Leg
from nereus.control.events import Event, OpCompleted
from nereus.control.phases import Settling, Transitioning
from nereus.layout.catalog import EndpointId
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from tests.runtime.loop import Loop, choice, scripted_config
from tests.runtime.serving import check_serving, emus_of, interruptions, records
from tests.runtime.world import World

TWICE = {
    ACTOR_GENERATION: choice(1, 1, 4, "0-3", micro_batch=4),
    REFERENCE_INFERENCE: choice(1, 1, 2, "4-5", micro_batch=4),
    ACTOR_TRAINING: choice(2, 1, 2, "0-3", micro_batch=4),
}
"""Each model-stage twice, so that one device may go."""

ENTRIES: dict[str, dict[str, Any]] = {
    "split": {ACTOR_TRAINING: choice(1, 1, 4, "0-3"), ACTOR_GENERATION: choice(2, 1, 2, "0-3")},
    "extend and destroy": {ACTOR_TRAINING: choice(2, 1, 2, "2-5"), REFERENCE_INFERENCE: choice(1, 1, 2, "0-1")},
    "destroy": {ACTOR_TRAINING: choice(2, 1, 1, "0-1"), ACTOR_GENERATION: choice(1, 1, 2, "2-3")},
    "merge": {ACTOR_TRAINING: choice(4, 1, 1, "0-3"), REFERENCE_INFERENCE: choice(2, 1, 1, "4-5")},
}
"""Transitions from there, by what they are made of."""

COPIES_AFTER = {"destroy": {ACTOR_TRAINING}, "merge": {ACTOR_TRAINING, REFERENCE_INFERENCE}}
"""Model-stages of which the transition leaves one copy."""


def make_loop(folder: Path, entry: str, seed: int, **cluster: Any) -> Loop:
    """A loop whose first boundary has this transition; its state moves in an order of its own."""
    fields: dict[str, Any] = {"plan": TWICE}
    if cluster:
        fields["cluster"] = {"nodes": 2, "devices_per_node": 4, "device": {"kind": "cpu", "speed": 0.1, **cluster}}
    order = Random(seed)
    config = scripted_config({"step": 1, "stages": ENTRIES[entry]}, **fields)
    return Loop(World(config, order=order), folder / f"{entry}{seed}.sqlite", order=order)


def length(folder: Path, entry: str, seed: int, **cluster: Any) -> int:
    """The events of the transition when nothing happens."""
    loop = make_loop(folder, entry, seed, **cluster)
    loop.begin()
    begun = loop.num_posted
    loop.boundary(1)
    loop.close()
    return loop.num_posted - begun


def after_fact(loop: Loop, number: int, happen: Callable[[Event], None]) -> None:
    """Let something happen right after so many more events."""
    at = loop.num_posted + number

    def look(event: Event) -> None:
        if loop.num_posted == at:
            happen(event)

    loop.after_event = look


def goes_on(loop: Loop) -> None:
    """The next step is run, and released on whole units that hold the state."""
    check_serving(loop, loop.boundary(2))


# --- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_logical_state_is_lost_while_one_intact_copy_is_left(tmp_path: Path, entry: str) -> None:
    """Paper, section 6.1: a transition that stops partway loses no logical state unless the last copy is lost."""
    for number in range(1, length(tmp_path, entry, 0), 3):
        loop = make_loop(tmp_path, entry, number)
        loop.begin()
        victim = f"d{number % 6}.0"

        def die(event: Event, loop: Loop = loop, victim: EndpointId = victim) -> None:
            if isinstance(loop.state.phase, Transitioning):
                loop.world.kill(victim, "something")

        after_fact(loop, number, die)
        release = loop.boundary(1)
        if not loop.world.dead:
            continue
        if release is not None and any(victim in emu.endpoints for emu in emus_of(release)):
            release = loop.lost(victim, "the weight sync")  # the last commits were quicker than the news of its death
        if loop.world.stopped is None:
            check_serving(loop, release)
            goes_on(loop)
            assert victim not in loop.state.endpoint_of.values()
            assert len(interruptions(loop)) <= 1
        else:
            assert "no intact copy of" in loop.world.stopped
            lost = loop.world.stopped.partition("no intact copy of ")[2].partition(" is left")[0].split(", ")
            assert set(lost) <= COPIES_AFTER.get(entry, set()), "another replica stood"
        loop.close()


@pytest.mark.parametrize("entry", ["split", "extend and destroy"])
def test_two_deaths_in_one_transition_are_survived_where_copies_are_left(tmp_path: Path, entry: str) -> None:
    """The second comes while the first is dealt with: in the abort, in the regroup, or in the transition after it."""
    phases = set()
    for number in range(1, 60, 4):
        loop = make_loop(tmp_path, entry, number)
        loop.begin()
        after_fact(loop, 18, lambda event, loop=loop: loop.world.kill("d3.0", "the first"))  # type: ignore[misc]
        seen = loop.after_event
        at = loop.num_posted + 18 + number

        def look(event: Event, loop: Loop = loop, at: int = at, seen: Callable[[Event], None] = seen) -> None:
            seen(event)
            if loop.num_posted == at:
                phases.add(type(loop.state.phase))
                loop.world.kill("d2.0", "the second")

        loop.after_event = look
        release = loop.boundary(1)
        assert loop.world.stopped is None, loop.world.stopped
        if "d2.0" in loop.world.dead:
            check_serving(loop, release)
            goes_on(loop)
            assert not {"d2.0", "d3.0"} & set(loop.state.endpoint_of.values())
        loop.close()
    assert {Settling, Transitioning} <= phases


def test_endpoints_are_aborted_and_quiet_before_anything_else_is_asked_of_them(tmp_path: Path) -> None:
    """Paper, section 4.3: Nereus detects lost GPUs, aborts communicators that include the dead ranks, and replans."""
    loop = make_loop(tmp_path, "split", 1)
    loop.begin()
    after_fact(loop, 14, lambda event: loop.world.kill("d3.0", "something"))
    began = len(loop.world.log)
    loop.boundary(1)
    ((epoch, aborted),) = loop.world.calls("abort")  # type: ignore[misc]
    assert epoch == 1  # type: ignore[has-type]
    assert set(aborted) >= {f"d{device}.0" for device in (0, 1, 2, 4, 5)}  # type: ignore[has-type]
    log = loop.world.log[began:]
    at = next(i for i, entry in enumerate(log) if getattr(entry, "verb", "") == "abort")
    quiet = next(i for i, entry in enumerate(log) if i > at and getattr(entry, "verb", "") in ("digest", "install", "run"))
    settled = [entry for entry in log[at:quiet] if type(entry).__name__ == "Settled"]
    assert {fact.endpoint for fact in settled} == set(aborted) - loop.world.dead  # type: ignore[has-type]


# --- failures ----------------------------------------------------------------------------------------------------------


def call_of(loop: Loop) -> tuple[EndpointId, str] | None:
    """A call of the transition that is under way, and on whom."""
    phase = loop.state.phase
    if not isinstance(phase, Transitioning) or phase.regroup is not None:
        return None
    carrying = phase.carrying
    epoch = carrying.task.epoch
    if carrying.leg in (Leg.MOVE, Leg.HELD):
        op, members = next(iter(sorted(carrying.running.items())))
        return sorted(members)[0], op
    verb = {
        Leg.QUIESCE: f"quiesce e{epoch}",
        Leg.DIGEST_BEFORE: f"digest e{epoch}.before",
        Leg.INSTALL: f"install e{epoch}",
        Leg.DIGEST_AFTER: f"digest e{epoch}.after",
        Leg.BIND: f"bind e{epoch}",
    }
    return sorted(carrying.waiting)[0], verb[carrying.leg]


@pytest.mark.parametrize("entry", ENTRIES)
def test_failure_rolls_back_until_the_first_destroy_and_leads_to_a_valid_plan_after_it(tmp_path: Path, entry: str) -> None:
    ends = set[str]()
    for number in range(1, length(tmp_path, entry, 0), 3):
        loop = make_loop(tmp_path, entry, 100 + number)
        first = loop.begin()
        assert first is not None
        destroyed: list[bool] = []

        def fail(event: Event, loop: Loop = loop, destroyed: list[bool] = destroyed) -> None:
            found = call_of(loop)
            if found is None:
                return
            phase = loop.state.phase
            assert isinstance(phase, Transitioning)
            carrying = phase.carrying
            started = [op for op in carrying.task.transition.ops if op.id in carrying.done or op.id in carrying.running]
            destroyed.append(any(op.frees for op in started) or carrying.leg >= Leg.HELD)
            loop.world.fail(*found)
            loop.after_event = lambda event: None

        after_fact(loop, number, fail)
        release = loop.boundary(1)
        assert loop.world.stopped is None
        assert release is not None
        check_serving(loop, release)
        ended = interruptions(loop)
        if ended and not destroyed[0]:
            assert ended[0].end == "rolled back"
            assert release.emus == first.emus
            assert release.plan.stages == first.plan.stages
        ends |= {event.end for event in ended}
        goes_on(loop)
        loop.close()
    assert ends == {"rolled back", "carried through"}


def test_stream_that_fails_goes_on_where_it_was_and_the_job_on_whole_units(tmp_path: Path) -> None:
    """Old and new shards do not fit at once, so tensors are freed bucket by bucket: neither side is whole in between."""
    tight = {"memory": 6400}
    streams = 0
    for number in range(1, length(tmp_path, "split", 0, **tight), 2):
        loop = make_loop(tmp_path, "split", number, **tight)
        loop.begin()

        def fail(event: Event, loop: Loop = loop) -> None:
            found = call_of(loop)
            if found is not None:
                loop.world.fail(*found)

        after_fact(loop, number, fail)
        release = loop.boundary(1)
        assert loop.world.stopped is None, loop.world.stopped
        check_serving(loop, release)
        streams += sum(op.stream is not None for op in loop.world.calls("run"))  # type: ignore[attr-defined]
        goes_on(loop)
        loop.close()
    assert streams > 0


# --- after it ----------------------------------------------------------------------------------------------------------


def test_names_of_a_transition_that_ended_early_are_not_used_again(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, "split", 3)
    loop.begin()
    after_fact(loop, 20, lambda event: loop.world.kill("d3.0", "something"))
    loop.boundary(1)
    ops = [entry.op for entry in loop.world.log if isinstance(entry, OpCompleted)]
    assert {int(op[1:].partition(".")[0]) for op in ops} >= {1, 3}
    assert loop.state.plan.epoch == 3
    assert [record.epoch for record in records(loop)] == [3]
    units = {emu.unit.birth_epoch for emu in loop.state.bound}
    assert 1 not in units or units <= {0, 1, 3}
    assert replace(loop.state).last_epoch == 3
