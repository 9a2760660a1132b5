"""The global data order, and the books on it: which prompt is next, which were used, whether any was used twice or never.

    lease(step, n) -> the next n prompts        commit(step, used) -> they are consumed
         the order: one seeded permutation of the prompts per epoch, without end

The order belongs to the job, never to a rank, so a change of layout or devices cannot lose or repeat a sample. A step that
dies between lease and commit leases the same prompts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from nereus.errors import PreconditionError, UserError


class SampleId(NamedTuple):
    """One use of one prompt: its place in the global order, which is never used again, its epoch and the prompt's index."""

    position: int
    epoch: int
    prompt: int

    def responses(self, samples_per_prompt: int) -> range:
        """The global ids of the responses sampled for this use, unique over the whole run."""
        return range(self.position * samples_per_prompt, (self.position + 1) * samples_per_prompt)


class SampleLedger:
    """Leases prompts in the global order and keeps account of those that were consumed.

    One step is leased at a time. The counts come from what was handed to `commit`, compared with the order; they don't
    come from the position, so a loop that trains on the wrong samples shows in them.
    """

    def __init__(self, num_prompts: int, seed: int) -> None:
        if num_prompts < 1:
            raise UserError(f"num_prompts: {num_prompts} prompts make no data order; it must be at least 1")
        self._num_prompts = num_prompts
        self._seed = seed
        self._position = 0
        self._committed_step: int | None = None
        self._lease: tuple[int, int] | None = None
        self._permutations: dict[int, list[int]] = {}
        self._open: dict[int, Counter[int]] = {}
        """Uses of each prompt in the epochs that the position has not passed, by epoch."""
        self._closed_epochs = 0
        self._seen = 0
        self._closed_repeated = 0
        self._closed_skipped = 0

    @property
    def position(self) -> int:
        """Prompts of the global order that are behind: where the next step starts."""
        return self._position

    def lease(self, step: int, n: int) -> tuple[SampleId, ...]:
        """The next n prompts for a step; the same ones again until the step is committed.

        Raises PreconditionError for a step that is committed already, for another step while one is leased, and for the
        same step with another n.
        """
        if self._committed_step is not None and step <= self._committed_step:
            raise PreconditionError(
                f"step {step} cannot lease: step {self._committed_step} is committed; lease a later step"
            )
        if n < 1:
            raise PreconditionError(f"step {step} asks for {n} prompts; it must be at least 1")
        if self._lease is not None and self._lease != (step, n):
            held = f"step {self._lease[0]} holds {self._lease[1]}"
            raise PreconditionError(f"step {step} asks for {n} prompts while {held}; commit that step first")
        self._lease = (step, n)
        return tuple(self._at(position) for position in range(self._position, self._position + n))

    def used(self, positions: Iterable[int], prompts: Iterable[int]) -> tuple[SampleId, ...]:
        """The sample ids of what was really trained on: places in the global order, and the prompts found there."""
        return tuple(SampleId(int(p), int(p) // self._num_prompts, int(i)) for p, i in zip(positions, prompts, strict=True))

    def commit(self, step: int, used: Iterable[SampleId] | None = None) -> None:
        """Book a leased step's prompts as consumed; committing the last committed step again changes nothing.

        used: the samples that were really trained on, when the caller knows; the lease's own otherwise.
        Raises PreconditionError for a step that isn't leased.
        """
        if self._lease is None and step == self._committed_step:
            return
        if self._lease is None or self._lease[0] != step:
            raise PreconditionError(f"step {step} cannot be committed: the lease is {self._lease}; lease the step first")
        for sample in self.lease(*self._lease) if used is None else used:
            self._book(sample)
        self._position += self._lease[1]
        self._committed_step, self._lease = step, None
        while self._closed_epochs < self._position // self._num_prompts:
            self._close_epoch()

    @property
    def seen(self) -> int:
        """Prompts consumed, repetitions included."""
        return self._seen

    @property
    def repeated(self) -> int:
        """Uses of a prompt beyond its first in an epoch."""
        return self._closed_repeated + sum(count - 1 for uses in self._open.values() for count in uses.values())

    @property
    def skipped(self) -> int:
        """Prompts that the order has passed and that were not consumed in their epoch."""
        passed = self._permutation(self._closed_epochs)[: self._position % self._num_prompts]
        uses = self._open.get(self._closed_epochs, Counter())
        return self._closed_skipped + sum(prompt not in uses for prompt in passed)

    def state(self) -> dict[str, Any]:
        """Everything but the permutations, which the seed gives again: JSON-able, for `restore`."""
        return {
            "num_prompts": self._num_prompts,
            "seed": self._seed,
            "position": self._position,
            "committed_step": self._committed_step,
            "lease": None if self._lease is None else list(self._lease),
            "open": [[epoch, sorted(uses.items())] for epoch, uses in sorted(self._open.items())],
            "closed_epochs": self._closed_epochs,
            "seen": self._seen,
            "closed_repeated": self._closed_repeated,
            "closed_skipped": self._closed_skipped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, a lease included. Raises UserError for another number of prompts or seed."""
        ours = {"num_prompts": self._num_prompts, "seed": self._seed}
        for field, value in ours.items():
            if state[field] != value:
                raise UserError(f"{field}: the run started with {state[field]}, the job says {value}; resume with the same")
        self._position = state["position"]
        self._committed_step = state["committed_step"]
        self._lease = None if state["lease"] is None else (state["lease"][0], state["lease"][1])
        self._open = {epoch: Counter(dict(uses)) for epoch, uses in state["open"]}
        self._closed_epochs = state["closed_epochs"]
        self._seen = state["seen"]
        self._closed_repeated = state["closed_repeated"]
        self._closed_skipped = state["closed_skipped"]

    def _at(self, position: int) -> SampleId:
        epoch, rank = divmod(position, self._num_prompts)
        return SampleId(position, epoch, self._permutation(epoch)[rank])

    def _permutation(self, epoch: int) -> list[int]:
        if epoch not in self._permutations:
            order = np.random.default_rng((self._seed, epoch)).permutation(self._num_prompts)
            self._permutations[epoch] = [int(prompt) for prompt in order]
        return self._permutations[epoch]

    def _book(self, sample: SampleId) -> None:
        self._seen += 1
        if sample.epoch < self._closed_epochs:
            self._closed_repeated += 1
        else:
            self._open.setdefault(sample.epoch, Counter())[sample.prompt] += 1

    def _close_epoch(self) -> None:
        """Fold the oldest epoch into the totals: the position has passed its end."""
        uses = self._open.pop(self._closed_epochs, Counter())
        self._closed_repeated += sum(count - 1 for count in uses.values())
        self._closed_skipped += sum(prompt not in uses for prompt in self._permutation(self._closed_epochs))
        del self._permutations[self._closed_epochs]
        self._closed_epochs += 1
