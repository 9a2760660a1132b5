"""`python -m nereus.cli.reference docs`; `make reference` is the same."""

from __future__ import annotations

import sys
from pathlib import Path

from nereus.cli.reference.pages import write

if __name__ == "__main__":
    write(Path(sys.argv[1]))
