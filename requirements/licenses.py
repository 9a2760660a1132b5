"""Writes docs/licenses.md to standard output: the licence of everything that images install, as its own metadata state it.

image.txt -> names and versions;  pip-licenses -> what the installed distributions say. `make licenses` runs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)

HEAD = """\
# Licences

Nereus is under the Apache License 2.0. What an image installs beside it is under these licences, as each distribution states
itself; none is the GPL, LGPL, AGPL or SSPL, and a test holds that. `make licenses` writes the list out of
the [lock](supply-chain.md#the-lock) and of what is installed; `make sbom` writes the same list, with digests, as CycloneDX.

| distribution | version | licence | from |
|---|---|---|---|
"""

TAIL = """
## CUDA images

`requirements/cuda.txt` is torch, built for CUDA, and what comes with that build. NVIDIA's libraries among them are not open
source: each is under the terms that its wheel carries. Read them before you publish an image:

"""


def pins(name: str) -> dict[str, str]:
    """Distribution -> version in one file of the lock."""
    return dict(PIN.findall((FOLDER / name).read_text(encoding="utf-8")))


def stated(names: list[str]) -> list[dict[str, str]]:
    """What the installed distributions state: Name, Version, License, URL of each, by name."""
    command = [str(Path(sys.executable).with_name("pip-licenses")), "--with-system", "--with-urls", "--format=json"]
    done = subprocess.run([*command, "--from=mixed", "--packages", *names], capture_output=True, text=True, check=True)
    found: list[dict[str, str]] = json.loads(done.stdout)
    return sorted(found, key=lambda entry: entry["Name"].lower())


def main() -> None:
    """Print the document."""
    image, cuda = pins("image.txt"), pins("cuda.txt")
    rows = [
        f"| {entry['Name']} | {entry['Version'].partition('+')[0]} | {entry['License']} | {entry['URL']} |\n"
        for entry in stated([*image, "torch"])
    ]
    theirs = ", ".join(f"{name} {version}" for name, version in cuda.items() if name.startswith(("cuda-", "nvidia-")))
    sys.stdout.write(HEAD + "".join(rows) + TAIL + theirs + ".\n")


if __name__ == "__main__":
    main()
