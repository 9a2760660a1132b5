"""What the core knows of a checkpoint: where it is, which step it is of, what it adds up to; and what is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nereus.emu.digest import BoxDigest, Digest, Sums, logical_digest
from nereus.emu.plan import Plan
from nereus.layout.catalog import StateSpec
from nereus.layout.tensors import TensorRef

StageDigests = tuple[tuple[str, TensorRef, Sums], ...]
"""The digest of each canonical tensor of each model-stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A saved state that is whole."""

    folder: str
    """Absolute, on a file system that all nodes share."""
    step: int
    """RL steps that are complete in it."""
    digests: StageDigests
    num_bytes: int
    seconds: float
    """How long it took to write, or to check where another run wrote it: reading is expected to take as long."""

    @property
    def name(self) -> str:
        """The last part of its folder."""
        return self.folder.rpartition("/")[2]

    @property
    def proof(self) -> dict[str, Digest]:
        """The digest of each model-stage, as a transition proves its units against."""
        proof: dict[str, Digest] = {}
        for stage, ref, sums in self.digests:
            proof.setdefault(stage, {})[ref] = sums
        return proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What a release goes back to: the loop takes up the step of this checkpoint, once."""

    folder: str
    epoch: int
    """Of the plan that was restored: a second return to one checkpoint has another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint was written, or could not be."""

    step: int
    reason: str
    """Why it was wanted."""
    folder: str | None
    """None where it failed."""
    num_bytes: int
    seconds: float
    """For which the loop stood."""
    error: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The job goes on from a checkpoint."""

    step: int
    """The step of the checkpoint."""
    epoch: int
    folder: str
    reason: str
    repeated_steps: int
    """Steps that were complete and are run again."""
    num_bytes: int
    """Read, by all endpoints."""
    seconds: float
    """Reading, proving and binding; what came before is in Waited."""
    plan: Plan


def digests_of(written: Iterable[tuple[str, BoxDigest]], states: Mapping[str, StateSpec]) -> StageDigests:
    """What the written boxes add up to. Raises DigestMismatch where they are not the whole state, each element once."""
    by_stage: dict[str, list[BoxDigest]] = {stage: [] for stage in states}
    for stage, digest in written:
        by_stage[stage].append(digest)
    found: list[tuple[str, TensorRef, Sums]] = []
    for stage, digests in by_stage.items():
        shapes = {tensor.ref: tensor.shape for tensor in states[stage].tensors}
        found += [(stage, ref, sums) for ref, sums in logical_digest(digests, shapes).items()]
    return tuple(found)
