"""Locks what images install, with hashes: `make lock` runs it, which needs the package registry.

pyproject.toml + image.in + constraints.txt  ->  uv  ->  image.txt   all but torch, the same on every accelerator
                                                 \\->  cuda.txt    torch and the CUDA libraries that it brings

Torch is apart since its build is the accelerator's: CUDA images install cuda.txt, ROCm images have the base image's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent

PLATFORM = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
"""What images are: Python 3.11 on Linux, x86-64."""

OF_TORCH = re.compile(r"(torch|triton|cuda-[a-z]+|nvidia-(?!ml-py)[a-z0-9-]+)==")
"""Distributions that belong to a build of torch; nvidia-ml-py is ours, and is pure Python."""

HEADER = """\
# Written by `make lock`: {what}.
# Install with `pip install --require-hashes --no-deps -r {name}`; change its sources, never this file.
"""


def locked() -> list[str]:
    """The lock as blocks of text, one a distribution: its pin, then its hashes. SystemExit if nothing fits."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", "requirements/image.in"]
    options = ["--constraint", "constraints.txt", "--generate-hashes", "--no-annotate", "--no-header", "--quiet"]
    done = subprocess.run([*command, *options, *PLATFORM], cwd=FOLDER.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the lock could not be made: {done.stderr}")
    return [block + "\n" for block in re.split(r"\n(?=\S)", done.stdout.strip())]


def write(name: str, what: str, blocks: list[str]) -> None:
    """One file of the lock."""
    (FOLDER / name).write_text(HEADER.format(what=what, name=f"requirements/{name}") + "".join(blocks), encoding="utf-8")


def main() -> None:
    """Make both files of the lock."""
    blocks = locked()
    torch = [block for block in blocks if OF_TORCH.match(block)]
    write("image.txt", "all that an image installs but torch", [block for block in blocks if block not in torch])
    write("cuda.txt", "torch, built for CUDA, and the libraries that it brings", torch)


if __name__ == "__main__":
    main()
