"""What the model is asked, and what an answer is worth: prompts by index, rewards by rule.

    index -> Prompt -> [generation] -> response ids -> reward in [0, 1]

Both are functions of (seed, index), so any process can grade any sample. `LetterClass` is learnt from random weights in a
minute; `ChainSum` is real arithmetic for SmolLM2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from nereus.errors import JobFileError, UserError
from nereus.rl.tokens import CLASSES, CharTokens, SmolTokens, Tokens

NUM_CLASSES = len(CLASSES)
"""Classes of `LetterClass`, equal parts of the vocabulary: a uniform policy scores 1/4, enough signal to learn from."""

CLASS_SIZE = len(CLASSES[0])
"""Tokens of one class: class k is the ids [16 k, 16 k + 16)."""

CLASS_MARKS = "!<>#"
"""The character by which a prompt names a class; each belongs to its class: marks, early letters, late letters, numbers."""

WORD_LENGTHS = (2, 3, 4)
"""Letters of the word in a `LetterClass` prompt, so that prompts differ in text and length."""

FORMAT_SHARE = 0.1
"""Reward of a `ChainSum` response that holds a number, but a wrong one. Without it a group of wrong answers has no signal;
much higher, and any number pays well enough."""

NUMBER = re.compile(r"(?:(?<![\w.)])[+-])?\d[\d,]*(?:\.\d+)?")
"""A decimal number; a sign counts unless it stands right after an operand, as in 12-5."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a task. Prompts are ragged: nothing pads them to a common length."""

    index: int
    text: str
    token_ids: tuple[int, ...]


class Task(Protocol):
    """Prompts and their grading. Deterministic in (seed, index); called by the loop, once per prompt and per response."""

    @property
    def num_prompts(self) -> int:
        """Prompts in one epoch."""

    @property
    def tokens(self) -> Tokens:
        """The vocabulary of prompts and responses."""

    def prompt(self, index: int) -> Prompt:
        """The prompt of an index in [0, num_prompts)."""

    def reward(self, prompt: Prompt, response_ids: Sequence[int]) -> float:
        """What a response, without padding, is worth: in [0, 1]. An empty response is worth 0."""


class LetterClass:
    """Write characters of the named class: the reward is the share of response tokens in it.

    A prompt is a random word, a class mark and a separator, such as `kev#:`. The classes partition the whole vocabulary, so
    every token that can be sampled is in exactly one and chance is 0.25. There is no end token: lengths follow the response
    cap, hence its curriculum.
    """

    def __init__(self, seed: int, num_prompts: int) -> None:
        self.num_prompts = num_prompts
        self.tokens: Tokens = CharTokens()
        self._seed = seed

    def prompt(self, index: int) -> Prompt:
        """See `Task.prompt`."""
        draw = np.random.default_rng((self._seed, index))
        letters = draw.integers(26, size=int(draw.choice(WORD_LENGTHS)))
        word = "".join(chr(ord("a") + int(letter)) for letter in letters)
        text = f"{word}{CLASS_MARKS[self._class_of(index)]}:"
        return Prompt(index, text, tuple(self.tokens.encode(text)))

    def reward(self, prompt: Prompt, response_ids: Sequence[int]) -> float:
        """See `Task.reward`."""
        wanted = self._class_of(prompt.index)
        return sum(token // CLASS_SIZE == wanted for token in response_ids) / max(1, len(response_ids))

    def _class_of(self, index: int) -> int:
        """Classes follow each other, so that they are equally frequent; the ledger shuffles prompts anyway."""
        return (index + self._seed) % NUM_CLASSES


class ChainSum:
    """Sums of two or three numbers of one or two digits, from reasoning-gym's `chain_sum`, as a chat for SmolLM2.

    The last number of the response is the answer. Reward: 1.0 if reasoning-gym's scorer accepts it, `FORMAT_SHARE` for
    another number, 0.0 for none. Responses end with <|im_end|> or at the cap.
    """

    def __init__(self, seed: int, num_prompts: int) -> None:
        self.num_prompts = num_prompts
        self.tokens: Tokens = SmolTokens()
        self._seed = seed

    def prompt(self, index: int) -> Prompt:
        """See `Task.prompt`. Raises UserError if reasoning-gym or the tokenizer isn't installed."""
        text = f"<|im_start|>user\n{self._problems[index]['question']}<|im_end|>\n<|im_start|>assistant\n"
        return Prompt(index, text, tuple(self.tokens.encode(text)))

    def reward(self, prompt: Prompt, response_ids: Sequence[int]) -> float:
        """See `Task.reward`."""
        answer = last_number(self.tokens.decode(response_ids))
        if answer is None:
            return 0.0
        right = self._problems.score_answer(answer, self._problems[prompt.index]) == 1.0
        return 1.0 if right else FORMAT_SHARE

    @cached_property
    def _problems(self) -> Any:
        try:
            from reasoning_gym import create_dataset
        except ImportError as error:
            raise UserError(f"task chain_sum needs the package {error.name}: pip install 'nereus-rl[smollm2]'") from error
        return create_dataset(
            "chain_sum", seed=self._seed, size=self.num_prompts, min_terms=2, max_terms=3, min_digits=1, max_digits=2
        )


TASKS: dict[str, Callable[[int, int], Task]] = {"letter_class": LetterClass, "chain_sum": ChainSum}
"""Tasks by the name that a job file gives them."""


def make_task(name: str, seed: int, num_prompts: int) -> Task:
    """The task of that name. Raises JobFileError for an unknown name, naming the known ones."""
    if name not in TASKS:
        raise JobFileError("task.name", name, f"known tasks are {', '.join(sorted(TASKS))}")
    return TASKS[name](seed, num_prompts)


def last_number(text: str) -> str | None:
    """The last number that a text holds, as written, or None."""
    found = NUMBER.findall(text)
    return found[-1] if found else None
