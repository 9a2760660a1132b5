"""The journal: what is written comes back equal, and a Driver that died at any event goes on from it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nereus.control.checkpoint import Checkpoint
from nereus.control.effects import ReleaseBoundary, RequestPlan, StopJob, TransitionRecord
from nereus.control.events import BoundaryReached, DeviceReady, Event, PlanReady, StateWritten, Verb
from nereus.control.phases import Stopped
from nereus.control.report import StepReport
from nereus.control.resume import pending
from nereus.emu.digest import BoxDigest
from nereus.emu.plan import StagePlan
from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.layout import Layout
from nereus.layout.tensors import Kind, TensorRef
from nereus.policy.admission import Code
from nereus.policy.proposal import Proposal
from nereus.runtime.journal import Entry, Journal, effects_hash
from tests.runtime.loop import POOL, Hangs, Loop, adaptive_config, choice, scripted_config
from tests.runtime.world import Faults, World

TEXT = st.text(max_size=8)
COUNT = st.integers(0, 2**63 - 1)
DEVICE = st.integers(0, 4095)
SECONDS = st.floats(0, 1e9, allow_nan=False)

UNIT = st.builds(UnitId, TEXT, DEVICE, DEVICE)
BOX_DIGEST = st.builds(
    BoxDigest,
    ref=st.builds(TensorRef, TEXT, st.sampled_from(Kind)),
    box=st.just(Box((0, 2), (4, 8))),
    sums=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
)
PROPOSAL = st.builds(
    Proposal,
    stages=st.just({"actor_training": StagePlan("actor_training", Layout(2, 1), 2, (3, 1, 0, 7), 4)}),
    l_step_s=SECONDS,
    peak_bytes=COUNT,
    l_tran_s=SECONDS,
    transition_peak_bytes=COUNT,
    primitives=st.dictionaries(st.sampled_from(["Split", "Extend"]), DEVICE),
    bytes_moved=COUNT,
    infeasible=st.none() | st.tuples(st.sampled_from(Code), TEXT),
)


def several(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "stage_s": st.dictionaries(TEXT, SECONDS, max_size=3),
    "peak_bytes": COUNT,
    "devices": several(DEVICE),
    "arriving": several(DEVICE),
    "gone": several(DEVICE),
    "leaving": st.dictionaries(DEVICE, DEVICE, max_size=3),
    "digests": several(st.tuples(UNIT, several(BOX_DIGEST))),
    "proposals": several(PROPOSAL),
}
"""What a field of this name holds; any other holds what its type says."""

CHECKPOINT = st.builds(
    Checkpoint,
    folder=TEXT,
    step=COUNT,
    digests=several(st.tuples(TEXT, st.builds(TensorRef, TEXT, st.sampled_from(Kind)), st.tuples(COUNT, COUNT))),
    num_bytes=COUNT,
    seconds=SECONDS,
)

TYPES = {
    "Checkpoint | None": st.none() | CHECKPOINT,
    "float": SECONDS,
    "int": COUNT,
    "str": TEXT,
    "EndpointId": TEXT,
    "DeviceId": DEVICE,
    "bool": st.booleans(),
    "Verb": st.sampled_from(Verb),
    "tuple[str, ...]": st.lists(TEXT, max_size=3).map(tuple),
}


def filled(kind: type[Any]) -> st.SearchStrategy[Any]:
    """An event of this kind, all fields drawn."""
    known = {**FIELDS, "report": filled(StepReport)} if kind is BoundaryReached else dict(FIELDS)
    if kind is StepReport:
        known["peak_bytes"] = st.dictionaries(TEXT, COUNT, max_size=3)
    if kind is StateWritten:
        known["digests"] = several(st.tuples(TEXT, BOX_DIGEST))
    return st.builds(kind, **{f.name: known[f.name] if f.name in known else TYPES[str(f.type)] for f in fields(kind)})


EVENTS = st.one_of([filled(kind) for kind in get_args(Event)])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.sqlite")
    opened.open()
    yield opened
    opened.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(event=EVENTS, at_s=SECONDS)
def test_event_comes_back_as_it_was_written(journal: Journal, event: Event, at_s: float) -> None:
    seq = journal.append(at_s, event)
    *_, last = journal.entries()
    assert last == Entry(seq, at_s, event, None)
    assert type(last.event) is type(event)


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_every_kind_of_event_can_be_written(journal: Journal, kind: type[Event]) -> None:
    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
    @given(filled(kind))
    def check(event: Event) -> None:
        journal.append(1.0, event)
        *_, last = journal.entries()
        assert last.event == event

    check()


def test_sequence_numbers_count_from_one_and_survive_closing(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        journal = Journal(tmp_path / "journal.sqlite")
        journal.open()
        assert journal.append(0.5, DeviceReady(device=expected, endpoint="d", peak_flops=1.0)) == expected
        journal.close()


def test_event_that_finds_the_disk_full_is_not_there_and_the_next_one_is_written(journal: Journal) -> None:
    ready = DeviceReady(device=1, endpoint="d", peak_flops=1.0)
    assert journal.append(0.5, ready) == 1
    (most,) = journal._table.sql.execute("pragma max_page_count").fetchone()
    journal._table.sql.execute("pragma max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        journal.append(1.0, DeviceReady(device=2, endpoint="d" * 10**5, peak_flops=1.0))
    assert [entry.event for entry in journal.entries()] == [ready]
    journal._table.sql.execute(f"pragma max_page_count = {most}")
    assert journal.append(1.5, ready) == 2


def test_effects_are_noted_beside_their_event(journal: Journal) -> None:
    seq = journal.append(0.5, DeviceReady(device=1, endpoint="d", peak_flops=1.0))
    assert [entry.effects for entry in journal.entries()] == [None]
    journal.acted(seq, (StopJob(reason="why not"),))
    assert [entry.effects for entry in journal.entries()] == [effects_hash((StopJob(reason="why not"),))]


def test_hash_tells_effects_apart_and_does_not_depend_on_the_order_of_sets() -> None:
    assert effects_hash((StopJob(reason="a"),)) != effects_hash((StopJob(reason="b"),))
    assert effects_hash(()) != effects_hash((StopJob(reason=""),))


def test_journal_is_one_file_in_wal_mode_that_others_can_read_while_it_is_written(tmp_path: Path) -> None:
    loop = Loop(World(scripted_config()), tmp_path / "journal.sqlite")
    loop.run(1)
    with sqlite3.connect(f"file:{tmp_path / 'journal.sqlite'}?mode=ro", uri=True) as reader:
        assert reader.execute("pragma journal_mode").fetchone() == ("wal",)
        assert reader.execute("select count(*) from events where effects is null").fetchone() == (0,)
        kinds = {kind for (kind,) in reader.execute("select distinct kind from events")}
    reader.close()
    loop.close()
    assert kinds == {
        "JobStarted",
        "DeviceReady",
        "Installed",
        "Quiesced",
        "Seeded",
        "Committed",
        "BoundaryReached",
        "DigestsTaken",
        "OpCompleted",
    }


# --- a head that dies --------------------------------------------------------------------------------------------------

SHORT: tuple[dict[str, Any], ...] = (
    {
        "step": 1,
        "join": "3",
        "stages": {"actor_training": choice(1, 1, 4, "0-3"), "actor_generation": choice(2, 1, 2, "0-3")},
    },
    {
        "step": 2,
        "leave": "3",
        "stages": {"actor_training": choice(2, 1, 1, "0-1"), "actor_generation": choice(2, 1, 1, "0-1")},
    },
)
PLAN = {
    "actor_generation": choice(2, 1, 1, "0-1"),
    "reference_inference": choice(1, 1, 1, "2"),
    "actor_training": choice(2, 1, 1, "0-1"),
}


def scripted(folder: Path) -> Loop:
    """Three devices and a fourth that joins and leaves: all four primitives in two transitions."""
    return Loop(World(scripted_config(*SHORT, plan=PLAN, absent="3-7")), folder / "journal.sqlite")


def adaptive(folder: Path) -> Loop:
    """A pool of 4, 8, 6 devices."""
    world = World(adaptive_config(), holds_values=False)
    return Loop(world, folder / "journal.sqlite", pool=POOL)


def outcome(make: Callable[[Path], Loop], folder: Path, steps: int, crash_after: int | None, acted: bool) -> Any:
    """What a run came to: plan, units, and what it told of its transitions; and how many events it took."""
    folder.mkdir()
    loop = make(folder)
    loop.crash_after, loop.crash_acted = crash_after, acted
    loop.run(steps)
    loop.close()
    assert loop.world.stopped is None, loop.world.stopped
    emus = loop.emus()
    assert set(loop.world.bound) == set(emus)
    assert loop.world.units() == {(endpoint, emu.unit) for emu in emus for endpoint in emu.endpoints}
    if loop.world.holds_values:
        assert loop.world.wrong(emus) == []
    told = [(n.step, n.epoch, n.primitives, n.joined, n.left, n.plan) for n in loop.news if isinstance(n, TransitionRecord)]
    return (loop.state.plan, emus, dict(loop.state.endpoint_of), told), loop.num_posted


def crash_everywhere(make: Callable[[Path], Loop], folder: Path, steps: int, acted: bool, every: int = 1) -> list[str]:
    """What differs, for each event after which the head died; for some of them only, but for all kinds, with `every`."""
    expected, num_events = outcome(make, folder / "undisturbed", steps, None, True)
    different = []
    arriving = set(range(18, 24)) if every > 1 else set()  # the pool grows, and its devices become ready
    for seq in sorted(arriving | set(range(1, num_events + 1, every))):
        try:
            found, _ = outcome(make, folder / str(seq), steps, seq, acted)
        except (AssertionError, Hangs) as error:
            different.append(f"after event {seq}: {type(error).__name__} {str(error).splitlines()[0] if str(error) else ''}")
            continue
        if found != expected:
            different.append(f"after event {seq}: another end")
    return different


@pytest.mark.parametrize("acted", [True, False], ids=["after its effects", "before its effects"])
def test_scripted_job_ends_the_same_wherever_the_head_dies(tmp_path: Path, acted: bool) -> None:
    assert crash_everywhere(scripted, tmp_path, 3, acted, every=1 if acted else 2) == []


@pytest.mark.parametrize("acted", [True, False], ids=["after its effects", "before its effects"])
def test_adaptive_job_ends_the_same_wherever_the_head_dies(tmp_path: Path, acted: bool) -> None:
    assert crash_everywhere(adaptive, tmp_path, 7, acted, every=24) == []


def test_recovered_driver_has_the_state_and_the_news_of_the_one_that_died(tmp_path: Path) -> None:
    loop = adaptive(tmp_path)
    loop.run(7)
    state, news = loop.state, list(loop.news)
    loop.restart()
    assert loop.state == state
    assert loop.news == news
    loop.close()


def test_planning_is_asked_for_again_with_the_same_cycle_and_snapshot(tmp_path: Path) -> None:
    world = World(adaptive_config(), holds_values=False, plan_boundaries=1)
    loop = Loop(world, tmp_path / "journal.sqlite", pool=POOL)
    loop.run(2)
    asked = loop.world.calls("propose")[-1]
    (request,) = pending(loop.state)
    assert isinstance(request, RequestPlan)
    assert (request.cycle, request.snapshot, request.top) == asked
    loop.close()


def test_stopped_job_says_so_again_after_a_restart(tmp_path: Path) -> None:
    world = World(scripted_config(), faults=Faults().lose("d1.0", "Split"), order=Random(1))
    loop = Loop(world, tmp_path / "journal.sqlite")
    loop.run(1)
    reason, world.stopped = world.stopped, None
    assert isinstance(loop.state.phase, Stopped)
    loop.restart()
    loop.close()
    assert world.stopped == reason
    assert not any(isinstance(effect, ReleaseBoundary) for effect in pending(loop.state))


def test_answer_of_a_planner_is_journaled_whole(tmp_path: Path) -> None:
    loop = adaptive(tmp_path)
    loop.run(7)
    journal = Journal(tmp_path / "journal.sqlite")
    journal.open()
    answers = [entry.event for entry in journal.entries() if isinstance(entry.event, PlanReady)]
    journal.close()
    loop.close()
    assert answers == [entry for entry in loop.world.log if isinstance(entry, PlanReady)]
    assert all(answer.proposals for answer in answers)
