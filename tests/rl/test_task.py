"""Tasks: the same prompts for a seed, rewards that follow from the text of a response."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from nereus.errors import JobFileError
from nereus.rl.task import FORMAT_SHARE, ChainSum, LetterClass, last_number, make_task
from nereus.rl.tokens import CharTokens


def test_letter_prompts_are_the_same_for_a_seed_and_differ_between_seeds() -> None:
    texts = [LetterClass(5, 64).prompt(index).text for index in range(64)]
    assert texts == [LetterClass(5, 64).prompt(index).text for index in range(64)]
    assert texts != [LetterClass(6, 64).prompt(index).text for index in range(64)]
    assert len(set(texts)) > 48


def test_letter_prompts_are_a_word_a_class_and_a_separator_of_ragged_length() -> None:
    task = LetterClass(0, 256)
    prompts = [task.prompt(index) for index in range(256)]
    for prompt in prompts:
        assert prompt.text[:-2].isalpha()
        assert prompt.text[-2] in "!<>#"
        assert prompt.text[-1] == ":"
        assert task.tokens.decode(prompt.token_ids) == prompt.text
    assert {len(prompt.token_ids) for prompt in prompts} == {4, 5, 6}
    assert Counter(prompt.text[-2] for prompt in prompts) == dict.fromkeys("!<>#", 64)


@pytest.mark.parametrize(
    ("mark", "response", "reward"),
    [("#", "0123", 1.0), ("#", "01ab", 0.5), ("<", "abm", 1.0), (">", "nzab", 0.5), ("!", "(..)", 1.0), ("!", "a", 0.0)],
)
def test_letter_reward_is_the_share_of_tokens_in_the_named_class(mark: str, response: str, reward: float) -> None:
    task = LetterClass(0, 8)
    prompt = next(p for p in map(task.prompt, range(8)) if p.text[-2] == mark)
    assert task.reward(prompt, CharTokens().encode(response)) == reward
    assert task.reward(prompt, []) == 0.0


def test_chance_in_the_letter_task_is_exactly_a_quarter_for_every_prompt() -> None:
    task = LetterClass(1, 16)
    for index in range(16):
        prompt = task.prompt(index)
        assert Fraction(sum(int(task.reward(prompt, [token])) for token in range(64)), 64) == Fraction(1, 4)


def test_make_task_refuses_an_unknown_name_and_names_the_known_ones() -> None:
    assert make_task("letter_class", 0, 8).num_prompts == 8
    with pytest.raises(JobFileError, match=r"task\.name: 'sums'.*chain_sum, letter_class"):
        make_task("sums", 0, 8)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 42.", "42"),
        ("57 + 87 = 144<|im_end|>", "144"),
        ("It's -7", "-7"),
        ("12-5", "5"),
        ("(12)-5", "5"),
        ("= -128.", "-128"),
        ("1,234.50 in all", "1,234.50"),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text_is_found(text: str, number: str | None) -> None:
    assert last_number(text) == number


def test_chain_sum_grades_the_last_number() -> None:
    task = ChainSum(3, 16)
    assert isinstance(task.tokens.eos, int)
    for index in range(16):
        prompt = task.prompt(index)
        expression = prompt.text.split("problem: ")[1].split(" =")[0]
        right = eval(expression)  # digits, spaces, + and -, from reasoning-gym
        assert task.reward(prompt, task.tokens.encode(f"{expression} = {right}<|im_end|>")) == 1.0
        assert task.reward(prompt, task.tokens.encode(f"It is {right + 1}.<|im_end|>")) == FORMAT_SHARE
        assert task.reward(prompt, task.tokens.encode(f"It is {right}1")) == FORMAT_SHARE
        assert task.reward(prompt, task.tokens.encode("I don't know<|im_end|>")) == 0.0
        assert task.reward(prompt, []) == 0.0


def test_chain_sum_prompts_are_chats_that_depend_on_the_seed_alone() -> None:
    task, same, other = ChainSum(3, 8), ChainSum(3, 8), ChainSum(40, 8)
    prompts = [task.prompt(index) for index in range(8)]
    assert prompts == [same.prompt(index) for index in range(8)]
    assert prompts != [other.prompt(index) for index in range(8)]
    for prompt in prompts:
        assert prompt.text.startswith("<|im_start|>user\n")
        assert prompt.text.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert prompt.token_ids[0] == 1
        assert max(prompt.token_ids) < 49152
        assert len(prompt.token_ids) <= 64
