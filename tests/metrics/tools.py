"""Tools that are no Python packages: on PATH, or beside the interpreter."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def found(name: str) -> str | None:
    """Where a tool is; None where there is none."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
