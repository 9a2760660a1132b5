"""What runs on this machine, from /proc: the descendants of a process, and that nothing is left of them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

PRIVATE_FOLDER = re.compile(r"/tmp/nereus-[A-Za-z0-9_]+")
"""The folder of a private cluster, in the command lines of its raylets and its store."""


LEFTOVER_S = 10.0
"""Seconds in which the processes of an ended cluster must be gone."""


class Process(NamedTuple):
    """A process, told from a later one of the same number by its start."""

    pid: int
    started: int
    """Clock ticks since boot."""
    command: str

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie doesn't."""
        now = _stat(self.pid)
        return now is not None and now[1] == self.started and now[2] != "Z"


def descendants(root: int) -> set[Process]:
    """All processes below `root`, however deep."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = _stat(int(name))
            if found is not None:
                children.setdefault(found[0], []).append((int(name), found[1]))
    below: set[Process] = set()
    waiting = [root]
    while waiting:
        for pid, started in children.get(waiting.pop(), []):
            below.add(Process(pid, started, _command(pid)))
            waiting.append(pid)
    return below


def workers_of_the_last_node(processes: Iterable[Process]) -> list[Process]:
    """Workers that a raylet other than the head's has started."""
    known = list(processes)
    raylets = [p for p in known if "/raylet/raylet" in p.command and "--head" not in p.command]
    below = {child for raylet in raylets for child in descendants(raylet.pid)}
    return [child for child in below if child.command.startswith("ray::Worker")]


def named(processes: Iterable[Process], actor: str) -> list[Process]:
    """The processes of an actor, by the name of its class."""
    return [process for process in processes if re.match(rf"ray::{actor}\b", process.command)]


def private_folders(processes: Iterable[Process]) -> set[Path]:
    """The folders of the private clusters that these processes belong to."""
    return {Path(match) for process in processes for match in PRIVATE_FOLDER.findall(process.command)}


def users_of(folders: Iterable[Path]) -> list[str]:
    """Command lines of all processes of this machine that name one of the folders."""
    names = [str(folder) for folder in folders]
    commands = [_command(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return [command for command in commands if any(name in command for name in names)]


def assert_nothing_left(before: Iterable[Process]) -> None:
    """All processes of a cluster have ended, and no other one uses its folder, which is gone."""
    known = list(before)
    folders = private_folders(known)
    assert folders
    wait_until(lambda: not [p.command for p in known if p.alive] + users_of(folders), LEFTOVER_S)
    assert not [folder for folder in folders if folder.exists()]


def wait_until(condition: Callable[[], object], timeout_s: float) -> None:
    """Look ten times a second."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s} s"
        time.sleep(0.1)


def _stat(pid: int) -> tuple[int, int, str] | None:
    """Parent, start and state; None when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1]), int(fields[19]), fields[0]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
