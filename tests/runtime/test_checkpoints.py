"""Checkpoints are whole or not there, whenever the writer is killed; and a job on a World goes back to one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import Waited
from nereus.control.phases import Saving
from nereus.control.resume import pending
from nereus.control.state import JobState
from nereus.errors import UserError
from nereus.monitor.pool import PoolEmulator
from nereus.runtime.checkpoints import (
    MANIFEST_FILE,
    WrittenFile,
    described,
    load,
    newest,
    partial_folder,
    seal,
    sealed,
    verify,
)
from nereus.runtime.journal import Journal
from nereus.runtime.replay import replay
from nereus.spec.checkpoint import Index
from nereus.spec.policy import CheckpointRule
from tests.runtime.loop import Loop, adaptive_config
from tests.runtime.world import World


class Killed(BaseException):
    """The process is gone: nothing after it runs."""


@contextmanager
def killed_after(calls: int) -> Iterator[None]:
    """The process dies instead of its next call to the file system after so many."""
    left, patch = [calls], pytest.MonkeyPatch()

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*args, **kwargs)

        return call

    for where, name in ((os, "fsync"), (Path, "rename"), (Path, "open"), (shutil, "rmtree"), (os, "rmdir"), (os, "unlink")):
        patch.setattr(where, name, dying(getattr(where, name)))
    try:
        with suppress(Killed):
            yield
    finally:
        patch.undo()


def written(root: Path, tag: str, text: str) -> list[WrittenFile]:
    """What workers have left in the unfinished folder."""
    partial = partial_folder(root, "run", tag)
    partial.mkdir(parents=True, exist_ok=True)
    for name in ("d0.0.safetensors", "d1.0.safetensors"):
        (partial / name).write_text(text + name)
    return [described(partial / name) for name in ("d0.0.safetensors", "d1.0.safetensors")]


def index(tag: str, step: int) -> Index:
    return Index(job="j", run="run", tag=tag, step=step, loop={"step": step}, stages={})


def test_kill_at_any_point_of_a_save_leaves_a_whole_checkpoint_and_no_torn_one(tmp_path: Path) -> None:
    steps: set[int] = set()
    for calls in range(1000):
        root = tmp_path / str(calls)
        for number in (1, 2):
            seal(root, index(f"s{number}", number), written(root, f"s{number}", str(number)), keep=2)
        files = written(root, "s3", "3")
        done = False
        with killed_after(calls):
            seal(root, index("s3", 3), files, keep=2)
            done = True
        for path in sealed(root):
            verify(path)
            load(path)
        steps.add(load(newest(root)).step)
        again = root / partial_folder(root, "run", "s3").name
        path = seal(root, index("s3", 3), files if again.exists() else [], keep=2)
        assert load(path).step == 3
        assert verify(path) > 0
        assert [load(p).step for p in sealed(root)] == [2, 3]
        if done:
            break
    assert steps == {2, 3}
    assert calls > 10


def test_last_ones_stay_and_numbers_go_on(tmp_path: Path) -> None:
    for number, step in enumerate((4, 8, 4, 8), 1):
        path = seal(tmp_path, index(f"s{number}", step), written(tmp_path, f"s{number}", "x"), keep=3)
        assert path.name == f"{number:06d}-step-{step}"
    assert [path.name for path in sealed(tmp_path)] == ["000002-step-8", "000003-step-4", "000004-step-8"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name for path in sealed(tmp_path)]


def test_checkpoints_of_other_runs_in_the_folder_stay(tmp_path: Path) -> None:
    """Those that are whole, and one that is being written by a run whose name begins with ours."""
    partial_folder(tmp_path, "other", "s1").mkdir(parents=True)
    theirs = seal(tmp_path, index("s1", 3).model_copy(update={"run": "other"}), [], keep=1)
    unfinished = partial_folder(tmp_path, "run-s9", "s1")
    unfinished.mkdir()
    for number in (1, 2, 3):
        last = seal(tmp_path, index(f"s{number}", number), written(tmp_path, f"s{number}", "x"), keep=1)
    assert sealed(tmp_path) == [theirs, last]
    assert unfinished.exists()


def test_file_that_is_not_there_as_written_is_refused_as_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    files = written(tmp_path, "s1", "x")
    (partial_folder(tmp_path, "run", "s1") / files[0].name).unlink()
    with pytest.raises(UserError, match=r"checkpoint\.folder: .*None bytes here.*name a folder that all nodes share"):
        seal(tmp_path, index("s1", 1), files, keep=1)
    assert sealed(tmp_path) == []


def test_checkpoint_is_found_by_itself_in_its_folder_and_in_that_of_a_run(tmp_path: Path) -> None:
    path = seal(tmp_path / "checkpoints", index("s1", 1), written(tmp_path / "checkpoints", "s1", "x"), keep=1)
    assert newest(path) == newest(path.parent) == newest(tmp_path) == path
    with pytest.raises(UserError, match="no finished checkpoint in"):
        newest(tmp_path / "elsewhere")


def test_index_that_was_changed_or_of_another_format_is_refused(tmp_path: Path) -> None:
    path = seal(tmp_path, index("s1", 1), written(tmp_path, "s1", "x"), keep=1)
    text = (path / "index.json").read_text()
    (path / "index.json").write_text(text.replace('"step": 1', '"step": 2', 1))
    with pytest.raises(UserError, match="is not the file that was written"):
        load(path)
    (path / "index.json").write_text(text.replace('"format": 1', '"format": 2'))
    manifest = json.loads((path / MANIFEST_FILE).read_text())
    told = described(path / "index.json")
    manifest["index.json"] = {"bytes": told.num_bytes, "sha256": told.sha256}
    (path / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="format"):
        load(path)


ZERO = PoolEmulator((4, 4, 4, 0, 0, 0, 0, 0, 0, 6, 6, 6, 6), tuple(range(8)), 2)
"""Four devices, none from the notice after step 3 on, and six when nine of the pool's own steps are over."""


def mortal(tmp_path: Path, pool: PoolEmulator | None = None, every: int | None = None, **world: Any) -> Loop:
    config = replace(
        adaptive_config(), pool_is_live=pool is not None, checkpoint=CheckpointRule(every_steps=every), num_steps=14
    )
    return Loop(World(config, **world), tmp_path / "journal.sqlite", pool=pool)


def told(loop: Loop, kind: type[Any]) -> list[Any]:
    return [news for news in loop.news if isinstance(news, kind)]


def test_job_whose_pool_falls_to_zero_waits_on_its_checkpoint_and_repeats_nothing(tmp_path: Path) -> None:
    loop = mortal(tmp_path, ZERO)
    loop.run(14)
    (saved,), (restored,), (waited,) = told(loop, Saved), told(loop, Restored), told(loop, Waited)
    assert loop.world.stopped is None
    assert (saved.step, restored.step, restored.repeated_steps) == (4, 4, 0)
    assert waited.seconds > 0
    assert set(restored.plan.devices) <= set(range(6))
    assert loop.state.step == 14
    assert loop.world.wrong(loop.state.bound) == []
    assert loop.state.pool_ahead > 0
    loop.close()


def test_last_copy_that_dies_unannounced_is_read_from_the_latest_checkpoint(tmp_path: Path) -> None:
    loop = mortal(tmp_path, every=4)
    loop.begin()
    for step in range(1, 7):
        loop.boundary(step)
    for device in range(4):
        loop.world.kill(f"d{device}.0", "a step")
    loop.lost("d0.0", "a step")
    (restored,) = told(loop, Restored)
    assert (restored.step, restored.repeated_steps, loop.step) == (4, 2, 4)
    assert loop.world.wrong(loop.state.bound) == []
    for step in range(5, 11):
        loop.boundary(step)
    assert [news.step for news in told(loop, Saved)] == [4, 8]
    assert loop.world.wrong(loop.state.bound) == []
    assert {emu.unit.birth_epoch for emu in loop.state.bound} == {restored.epoch}
    loop.close()


def test_job_that_never_saved_stops_and_one_that_did_names_the_way_back(tmp_path: Path) -> None:
    loop = mortal(tmp_path, every=None)
    loop.begin()
    loop.boundary(1)
    for device in range(4):
        loop.world.kill(f"d{device}.0", "a step")
    loop.lost("d0.0", "a step")
    assert loop.world.stopped is not None
    assert "run the job again" in loop.world.stopped
    loop.close()


def test_state_that_reads_otherwise_than_it_was_saved_stops_the_job(tmp_path: Path) -> None:
    loop = mortal(tmp_path, every=2)
    loop.begin()
    for step in (1, 2, 3):
        loop.boundary(step)
    (held,) = loop.world.checkpoints.values()
    ref, values = next(iter(held["actor_training"].items()))
    values.reshape(-1)[0] += 1
    for device in range(4):
        loop.world.kill(f"d{device}.0", "a step")
    loop.lost("d0.0", "a step")
    assert loop.world.stopped is not None
    assert "the checkpoint is not what was saved" in loop.world.stopped
    assert str(ref) in loop.world.stopped
    assert "nereus run JOB --resume /checkpoints/s1-step-2" in loop.world.stopped
    loop.close()


@pytest.mark.parametrize("acted", [True, False])
def test_controller_that_dies_at_any_event_of_save_and_restore_goes_on_the_same(tmp_path: Path, acted: bool) -> None:
    """Deaths after each event from the first save to the restored step; the plan and the state come out alike."""
    (tmp_path / "whole").mkdir()
    whole = mortal(tmp_path / "whole", ZERO)
    whole.run(7)
    assert told(whole, Restored)
    for after in range(30, whole.num_posted, 5):
        folder = tmp_path / f"{after}-{acted}"
        folder.mkdir()
        loop = mortal(folder, ZERO)
        loop.crash_after, loop.crash_acted = after, acted
        loop.run(7)
        assert loop.world.stopped is None, after
        assert loop.state.step == 7
        assert loop.world.wrong(loop.state.bound) == []
        assert [news.step for news in told(loop, Restored)] == [4]
        loop.close()
    whole.close()


def test_random_orders_of_facts_lead_to_the_same_state(tmp_path: Path) -> None:
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        loop = mortal(folder, ZERO, every=3, order=Random(seed))
        loop.run(14)
        assert loop.world.stopped is None
        assert loop.world.wrong(loop.state.bound) == []
        journal = Journal(folder / "journal.sqlite")
        journal.open()
        replayed = replay(journal, JobState(config=loop.world.config))
        journal.close()
        assert replayed.first_difference is None
        assert replayed.state == loop.state
        loop.close()


def test_save_that_is_under_way_is_asked_for_again_after_a_restart(tmp_path: Path) -> None:
    loop = mortal(tmp_path, every=2)
    loop.begin()
    loop.boundary(1)
    seen = []
    loop.after_event = lambda event: seen.append(pending(loop.state)) if isinstance(loop.state.phase, Saving) else None
    loop.boundary(2)
    assert [type(effects[-1]).__name__ for effects in seen] == ["SaveState"] * 4 + ["SealState"]
    loop.close()
