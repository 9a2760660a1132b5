"""The folder of checkpoints: how one gets its name, and which of them are whole.

    .partial-<run>-<tag>/ d0.0.safetensors ...  -> index.json -> manifest.json, each on the disk -> renamed
    000003-step-12/                             -> the newest `keep` of each run stay

What has no final name was never finished, and is not read. The manifest holds size and SHA-256 of every other file. All
nodes of a job see the folder under one path: that is the contract.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nereus.errors import NereusError, UserError
from nereus.spec.checkpoint import Index, parse_index

INDEX_FILE, MANIFEST_FILE = "index.json", "manifest.json"

NAME = re.compile(r"(\d{6,})-step-(\d+)")
"""Number within the folder and completed steps; numbers count up, so that the newest is the highest."""

READ_BYTES = 1 << 20
"""Bytes that are hashed at once: large enough for the disk, small beside a shard."""


class WrittenFile(NamedTuple):
    """One file of a checkpoint, as its writer tells of it."""

    name: str
    num_bytes: int
    sha256: str


def root_of(declared: str | None, run_folder: Path) -> Path:
    """Where the checkpoints of a run go."""
    return Path(declared) if declared is not None else run_folder / "checkpoints"


def partial_folder(root: Path, run: str, tag: str) -> Path:
    """Where the files of a save go until it is whole."""
    return root / f".partial-{run}-{tag}"


def seal(root: Path, index: Index, files: Iterable[WrittenFile], keep: int) -> Path:
    """Give a save whose files are written its index, manifest and name, and drop what is older than the last `keep`.

    Asked again, it answers as before. Raises UserError when a file is not there as it was written: the folder is not shared.
    """
    partial = partial_folder(root, index.run, index.tag)
    if not partial.exists():
        for path in reversed(sealed(root)):
            if (known := load(path)).run == index.run and known.tag == index.tag:
                _prune(root, index.run, keep)
                return path
    written = list(files)
    for file in written:
        size = (partial / file.name).stat().st_size if (partial / file.name).exists() else None
        if size != file.num_bytes:
            raise UserError(
                f"checkpoint.folder: {partial / file.name} has {size} bytes here, and {file.num_bytes} where it was "
                "written; name a folder that all nodes share"
            )
    write_durably(partial / INDEX_FILE, index.model_dump_json(indent=1))
    written.append(described(partial / INDEX_FILE))
    manifest = {file.name: {"bytes": file.num_bytes, "sha256": file.sha256} for file in written}
    write_durably(partial / MANIFEST_FILE, json.dumps(manifest, indent=1))
    sync_folder(partial)
    last = sealed(root)
    number = 1 + (int(last[-1].name.partition("-")[0]) if last else 0)
    path = root / f"{number:06d}-step-{index.step}"
    partial.rename(path)
    sync_folder(root)
    _prune(root, index.run, keep)
    return path


def sealed(root: Path) -> list[Path]:
    """The checkpoints of a folder that were finished, oldest first."""
    found = [path for path in root.iterdir() if NAME.fullmatch(path.name)] if root.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.partition("-")[0]))


def newest(where: Path) -> Path:
    """The newest checkpoint at a path: itself, in a folder of them, or in a run's folder. Raises UserError without one."""
    if (where / MANIFEST_FILE).exists():
        return where
    for root in (where, where / "checkpoints"):
        if found := sealed(root):
            return found[-1]
    raise UserError(
        f"--resume: there is no finished checkpoint in {where}; name a checkpoint, or the folder of a run with one"
    )


def load(path: Path) -> Index:
    """The index of a checkpoint. Raises UserError if it is not the one that its manifest is about."""
    manifest = _manifest(path)
    expected, found = manifest.get(INDEX_FILE), described(path / INDEX_FILE)
    if expected != found:
        raise UserError(f"{path / INDEX_FILE} is not the file that was written; resume from another checkpoint")
    return parse_index((path / INDEX_FILE).read_text(), str(path / INDEX_FILE))


def verify(path: Path) -> int:
    """Read every file of a checkpoint and compare it with the manifest; their bytes. Raises UserError for a damaged one."""
    manifest = _manifest(path)
    for name, expected in manifest.items():
        if not (path / name).exists() or described(path / name) != expected:
            raise UserError(f"{path / name} is not the file that was written; resume from another checkpoint")
    return sum(file.num_bytes for file in manifest.values())


def described(path: Path) -> WrittenFile:
    """Size and digest of a file. Raises UserError if it cannot be read."""
    hashed, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                hashed.update(block)
                size += len(block)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}); resume from another checkpoint") from error
    return WrittenFile(path.name, size, hashed.hexdigest())


def write_durably(path: Path, text: str) -> None:
    """Write a file, and return when it is on the disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest(path: Path) -> dict[str, WrittenFile]:
    try:
        entries = json.loads((path / MANIFEST_FILE).read_text())
        return {name: WrittenFile(name, int(entry["bytes"]), str(entry["sha256"])) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path / MANIFEST_FILE} cannot be read ({error}); resume from another checkpoint") from error


def _run_of(path: Path) -> str | None:
    """The run that wrote a checkpoint; None where that cannot be read."""
    try:
        return load(path).run
    except NereusError:
        return None


def _prune(root: Path, run: str, keep: int) -> None:
    """Drop the run's oldest checkpoints, and what its earlier saves have left unfinished; other runs' stay."""
    ours = [path for path in sealed(root) if _run_of(path) == run]
    left = re.compile(rf"\.partial-{re.escape(run)}-s\d+|\.old-.*")
    for path in [*ours[:-keep], *(path for path in root.iterdir() if left.fullmatch(path.name))]:
        gone = path if path.name.startswith(".") else path.rename(root / f".old-{path.name}")
        shutil.rmtree(gone, ignore_errors=True)
