"""Text as token ids, and back: one character per token for the letter task, the model's own tokens for SmolLM2.

Tasks encode prompts and read responses; generation needs only `eos`, `pad` and `vocab_size`. Lengths travel beside the
ids everywhere in `rl`, so `pad` is a filler that nobody recognises by its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nereus.errors import UserError
from nereus.rl import smollm2

CLASSES = (
    "~.,:;!?'\"()[] \n$",
    "abcdefghijklm@&<",
    "nopqrstuvwxyz^|>",
    "0123456789+-*/=#",
)
"""The four classes of the letter task, 16 characters each: marks, early letters, late letters, numbers."""

ALPHABET = "".join(CLASSES)
"""The 64 characters of `CharTokens`; a character's index is its id. `~`, id 0, is the filler, `:` separates prompt and
response. A model for it has vocab_size 64: with more, ids could be sampled that are in no class."""


class Tokens(Protocol):
    """A vocabulary. Pure once built; `decode(encode(text)) == text` for any text that `encode` accepts."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, the model's vocabulary."""

    @property
    def pad(self) -> int:
        """An id to fill up short rows with."""

    @property
    def eos(self) -> int | None:
        """The id that ends a response, or None when only the response cap does."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises UserError for text that the vocabulary can't spell."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""


class CharTokens:
    """One token per character of `ALPHABET`, without an end token: every response is as long as the cap allows."""

    vocab_size = len(ALPHABET)
    pad = 0
    eos = None

    def encode(self, text: str) -> list[int]:
        """See `Tokens.encode`."""
        ids = [ALPHABET.find(character) for character in text]
        if -1 in ids:
            odd = text[ids.index(-1)]
            raise UserError(f"character {odd!r} isn't in the alphabet of the letter task; use those of {ALPHABET!r}")
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokens.decode`."""
        return "".join(ALPHABET[index] for index in ids)


class SmolTokens:
    """The tokenizer of SmolLM2, built on first use. A response ends with <|im_end|>, which `decode` writes out."""

    vocab_size = smollm2.SHAPE.vocab_size
    pad = 0
    """<|endoftext|>."""
    eos = 2
    """<|im_end|>."""

    def encode(self, text: str) -> list[int]:
        """See `Tokens.encode`; control tokens in the text, such as <|im_start|>, become one id each."""
        ids: list[int] = smollm2.tokenizer().encode(text).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokens.decode`."""
        text: str = smollm2.tokenizer().decode(list(ids), skip_special_tokens=False)
        return text
