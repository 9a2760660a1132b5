"""Rollouts: rows keep what belongs to them through cutting, joining and recording."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from nereus.errors import UserError
from nereus.rl.rollouts import RecordedRollouts, Rollout, RolloutRecorder


def make_rollout(lengths: list[tuple[int, int]], first: int = 0, dtype: torch.dtype = torch.float64) -> Rollout:
    """Rows of (prompt, response) lengths; row n's tokens count up from 100 n."""
    width, n = max((p + r for p, r in lengths), default=0), len(lengths)
    prompt, response = torch.tensor(lengths, dtype=torch.int64).view(n, 2).unbind(1)
    at, ids = torch.arange(width), torch.arange(first, first + n)
    inside = at < (prompt + response)[:, None]
    answered = inside & (at >= prompt[:, None])
    return Rollout(
        sample_ids=ids,
        prompt_index=ids // 2,
        tokens=torch.where(inside, 100 * ids[:, None] + at + 1, 0),
        prompt_length=prompt,
        response_length=response,
        old_logprobs=torch.where(answered, -torch.rand(n, width, dtype=torch.float64), 0.0).to(dtype),
        rewards=torch.rand(n, dtype=torch.float64),
    )


def assert_equal(left: Rollout, right: Rollout) -> None:
    for field in fields(Rollout):
        a, b = getattr(left, field.name), getattr(right, field.name)
        assert a.dtype == b.dtype
        assert torch.equal(a, b), field.name


def test_the_response_mask_covers_the_response_and_nothing_else() -> None:
    mask = make_rollout([(2, 3), (1, 1), (3, 0)]).response_mask
    assert mask.int().tolist() == [[0, 0, 1, 1, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_response_tokens_are_counted_without_filler() -> None:
    assert make_rollout([(2, 3), (1, 1), (3, 0)]).num_response_tokens == 4


def test_rows_are_cut_to_the_longest_of_them() -> None:
    whole = make_rollout([(2, 3), (1, 1), (1, 2)])
    part = whole.rows(1, 3)
    assert part.tokens.tolist() == [[101, 102, 0], [201, 202, 203]]
    assert part.sample_ids.tolist() == [1, 2]
    assert torch.equal(part.old_logprobs, whole.old_logprobs[1:, :3])


def test_select_takes_rows_in_the_order_given() -> None:
    assert make_rollout([(2, 3), (1, 1), (1, 2)]).select([2, 0]).sample_ids.tolist() == [2, 0]


def test_no_rows_are_a_rollout_too() -> None:
    whole = make_rollout([(2, 3), (1, 1)])
    assert whole.rows(1, 1).tokens.shape == (0, 0)
    assert_equal(Rollout.concat([whole.rows(0, 0), whole]), whole)


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_concat_of_a_cut_gives_the_whole_back(cut: int) -> None:
    whole = make_rollout([(2, 1), (1, 6), (3, 3), (1, 1)])
    assert_equal(Rollout.concat([whole.rows(0, cut), whole.rows(cut, 4)]), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recorded_rollouts_come_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    recorder, source = RolloutRecorder(tmp_path / "rollouts"), RecordedRollouts(tmp_path / "rollouts")
    first, second = make_rollout([(2, 3), (1, 1)], dtype=dtype), make_rollout([(1, 4)], first=2, dtype=dtype)
    assert recorder.write(0, first).exists()
    recorder.write(1, second)
    assert_equal(source.step(1), second)
    assert_equal(source.step(0), first)
    assert sorted(file.name for file in (tmp_path / "rollouts").iterdir()) == ["step-000000.npz", "step-000001.npz"]


def test_a_step_that_was_not_recorded_is_an_error_that_says_which_were(tmp_path: Path) -> None:
    source = RecordedRollouts(tmp_path)
    with pytest.raises(UserError, match=r"no rollouts of step 7 .*it holds none"):
        source.step(7)
    for step in (3, 4):
        RolloutRecorder(tmp_path).write(step, make_rollout([(1, 1)]))
    with pytest.raises(UserError, match=r"it holds steps 3 to 4 \(2 files\)"):
        source.step(7)


def test_a_dtype_that_numpy_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bfloat16"):
        RolloutRecorder(tmp_path).write(0, make_rollout([(1, 1)], dtype=torch.bfloat16))
    assert list(tmp_path.iterdir()) == []
