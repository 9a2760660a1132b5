"""Vocabularies: what they spell comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.errors import UserError
from nereus.rl.tokens import ALPHABET, CharTokens, SmolTokens


def test_the_alphabet_has_64_different_characters_with_all_letters_and_digits() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == CharTokens.vocab_size == 64
    assert set("abcdefghijklmnopqrstuvwxyz0123456789 \n:") <= set(ALPHABET)


@given(st.text(alphabet=ALPHABET))
def test_characters_come_back_as_they_were(text: str) -> None:
    tokens = CharTokens()
    assert tokens.decode(tokens.encode(text)) == text


def test_characters_have_no_end_token_and_a_filler_in_the_vocabulary() -> None:
    tokens = CharTokens()
    assert tokens.eos is None
    assert tokens.pad == 0


def test_a_character_outside_the_alphabet_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="'É'"):
        CharTokens().encode("abcÉ")


def test_smollm2_tokens_are_those_of_the_published_tokenizer() -> None:
    tokens = SmolTokens()
    # Published ids: tokenizer_config.json of SmolLM2-135M-Instruct names 0 to 2, and its tokenizer splits digits.
    assert tokens.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert tokens.eos == 2
    assert len(tokens.encode("12345")) == 5
    text = "<|im_start|>user\nWhat is 12 + 345?  Héllo!<|im_end|>\n"
    assert tokens.decode(tokens.encode(text)) == text
