"""One process per folder: a lock that the kernel frees with the process, however it ends."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

PATIENCE_S = 10.0
"""Seconds for the process before to be gone: one that was killed holds it until the kernel has ended it."""

POLL_S = 0.1
"""Seconds between two tries."""


def held(path: Path, patience_s: float = PATIENCE_S) -> IO[bytes]:
    """The lock of a file, which is made where it is missing: held until it is closed. Raises BlockingIOError."""
    file = path.open("ab")
    end_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > end_s:
                file.close()
                raise BlockingIOError(f"another controller keeps its records there ({path} is locked)") from None
        time.sleep(POLL_S)
