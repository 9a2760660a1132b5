"""The lock of a folder, between processes: one holder at a time, freed with the process that held it, however it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereus.runtime.locking import held

HOLDER = """
import sys, time
from pathlib import Path
from nereus.runtime.locking import held
lock = held(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(120)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of the folder."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "controller.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("holder")
def test_second_holder_is_refused_with_the_name_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match=f"another controller keeps its records there .{tmp_path}"):
        held(tmp_path / "controller.lock", patience_s=0.2)


def test_lock_of_a_holder_that_was_killed_goes_to_who_asks_next(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    held(tmp_path / "controller.lock").close()


def test_lock_that_was_closed_is_free(tmp_path: Path) -> None:
    for _ in range(2):
        held(tmp_path / "controller.lock", patience_s=0.0).close()
