"""Four processes over Gloo compute what one rank computes: scores, gradients, updates and tokens, in float64.

The one rank is itself compared with formulas written down directly in `test_train` and `test_generate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from nereus.layout.layout import Layout
from nereus.layout.tensors import Kind
from nereus.rl.assemble import assemble
from nereus.rl.generate import Generate, Sampling, generate
from nereus.rl.train import Accumulate, Apply, Score, accumulate, apply, score
from nereus.spec.training import Optimizer
from tests.rl.group import Alone, Group, make_accumulate, make_rollout, make_shape, replicas_agree

pytestmark = pytest.mark.gloo

OPTIMIZER = Optimizer(learning_rate=0.03, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1, max_grad_norm=0.5)

LAYOUTS = {
    "tp2": (Layout(2), 1),
    "tp4, two kv heads": (Layout(4), 1),
    "pp2, uneven layers": (Layout(1, 2), 1),
    "pp3": (Layout(1, 3), 1),
    "dp4": (Layout(1, 1), 4),
    "tp2 pp2": (Layout(2, 2), 1),
    "tp2 dp2": (Layout(2), 2),
    "pp2 dp2": (Layout(1, 2), 2),
}
by_layout = pytest.mark.parametrize(("layout", "dp"), LAYOUTS.values(), ids=LAYOUTS)
by_tie = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])

EIGHT = ((2, 5), (1, 1), (6, 3), (3, 7), (4, 2), (2, 2), (5, 1), (1, 6))
"""Prompt and response tokens of eight ragged rows."""


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    made = Group(4)
    yield made
    made.close()


def shares(count: int, dp: int) -> list[tuple[int, int]]:
    return [(i * count // dp, (i + 1) * count // dp) for i in range(dp)]


def of_rows(request: Accumulate, low: int, high: int) -> Accumulate:
    return replace(
        request,
        rollout=request.rollout.rows(low, high),
        advantages=request.advantages[low:high],
        ref_log_probs=request.ref_log_probs[low:high],
    )


def answer(group: Group, index: int, found: dict[str, Any]) -> Any:
    """The one answer of a unit: that of its first TP rank of the last pipeline rank."""
    emu = group.emus[index]
    (endpoint,) = [name for name, result in found.items() if result is not None]
    at = emu.layout.coordinate(emu.rank_of(endpoint))
    assert (at.tp, at.pp) == (0, emu.layout.pp - 1)
    return found[endpoint]


@by_tie
@by_layout
def test_ranks_together_score_what_one_rank_scores(group: Group, layout: Layout, dp: int, tied: bool) -> None:
    shape = make_shape(tied=tied)
    rollout = make_rollout(shape, EIGHT)
    expected = score(Alone(shape).view, Score(rollout, 3, 0.8))
    assert expected is not None
    used = group.open(shape, layout, dp)
    parts = shares(8, dp)
    found = group.compute([Score(rollout.rows(low, high), 3, 0.8) for low, high in parts])
    for index, (low, high) in enumerate(parts):
        ours = answer(group, index, found[index])
        torch.testing.assert_close(ours, expected[low:high, : ours.shape[1]], rtol=1e-10, atol=1e-10)
    assert group.used_bytes() == used


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@by_tie
@by_layout
def test_ranks_together_find_the_gradient_that_one_rank_finds_and_take_the_same_step(
    group: Group, layout: Layout, dp: int, tied: bool, recompute: bool
) -> None:
    shape = make_shape(tied=tied)
    alone, request = Alone(shape), make_accumulate(make_rollout(shape, EIGHT), micro_batch=3)
    gradients, prepared = accumulate(alone.view, request)
    expected = {name: grad.clone() for name, grad in gradients.by_name.items()}
    step = Apply(1, 1, 8, prepared.grad_norm, OPTIMIZER)
    apply(alone.view, step, gradients)
    used = group.open(shape, layout, dp)
    together = replace(request, recompute=recompute)
    found = group.compute([of_rows(together, low, high) for low, high in shares(8, dp)])
    answers = [answer(group, index, part) for index, part in enumerate(found)]
    assert sum(a.loss for a in answers) == pytest.approx(prepared.loss, rel=1e-10)
    assert sum(a.kl for a in answers) == pytest.approx(prepared.kl, rel=1e-10)
    assert sum(a.clipped for a in answers) == prepared.clipped
    assert [a.grad_norm for a in answers] == [pytest.approx(prepared.grad_norm, rel=1e-10)] * dp
    for index in range(dp):
        pieces = group.pieces(index, "gradients")
        assert replicas_agree(pieces)
        whole = assemble(alone.state, pieces, Kind.PARAMETER)
        for name, grad in expected.items():
            torch.testing.assert_close(whole[name], grad, rtol=1e-9, atol=1e-11, msg=name)
    group.compute([step] * dp)
    for index in range(dp):
        pieces = group.pieces(index, "read", Kind.PARAMETER)
        assert replicas_agree(pieces)
        whole = assemble(alone.state, pieces, Kind.PARAMETER)
        for name, parameter in alone.parameters.items():
            torch.testing.assert_close(whole[name], parameter, rtol=1e-9, atol=1e-11, msg=name)
    assert group.used_bytes() == used


@by_tie
@pytest.mark.parametrize(
    ("layout", "dp", "kv"),
    [(Layout(2), 1, 2), (Layout(4), 1, 2), (Layout(4), 1, 1), (Layout(2), 2, 2), (Layout(1), 4, 2), (Layout(4), 1, 4)],
    ids=["tp2", "tp4 kv2", "tp4 kv1", "tp2 dp2", "dp4", "tp4 kv4"],
)
def test_ranks_together_generate_the_tokens_that_one_rank_generates(
    group: Group, layout: Layout, dp: int, kv: int, tied: bool
) -> None:
    shape = make_shape(tied=tied, num_kv_heads=kv)
    prompts = ((3, 1, 4), (1, 5), (9, 2, 6, 5, 3, 5), (8,), (9, 7, 9, 3), (2, 3, 8, 4), (6,), (2, 6, 4, 3))
    whole = Generate(torch.arange(8) + 50, prompts, Sampling(7, 0.9, None, 5), wave=3)
    first = generate(Alone(shape).view, whole)
    assert first is not None
    whole = replace(whole, sampling=Sampling(7, 0.9, int(first.tokens[1, 2]), 5))
    expected = generate(Alone(shape).view, whole)
    assert expected is not None
    assert expected.lengths.min() < 7
    used = group.open(shape, layout, dp)
    parts = shares(8, dp)
    found = group.compute([replace(whole, sample_ids=whole.sample_ids[a:b], prompts=prompts[a:b]) for a, b in parts])
    for index, (low, high) in enumerate(parts):
        ours = answer(group, index, found[index])
        width = ours.tokens.shape[1]
        assert torch.equal(ours.tokens, expected.tokens[low:high, :width])
        assert torch.equal(ours.lengths, expected.lengths[low:high])
        torch.testing.assert_close(ours.log_probs, expected.log_probs[low:high, :width], rtol=1e-10, atol=1e-10)
    assert group.used_bytes() == used


@pytest.mark.parametrize("kv", [1, 2])
def test_kv_heads_that_tp_ranks_share_get_the_gradient_of_all_of_them(group: Group, kv: int) -> None:
    shape = make_shape(num_kv_heads=kv)
    request = make_accumulate(make_rollout(shape, EIGHT), micro_batch=8)
    gradients, prepared = accumulate(Alone(shape).view, request)
    group.open(shape, Layout(4), 1)
    (found,) = group.compute([request])
    assert answer(group, 0, found).grad_norm == pytest.approx(prepared.grad_norm, rel=1e-10)
    pieces = [piece for piece in group.pieces(0, "gradients") if piece.ref.name.endswith("k_proj.weight")]
    assert len({(piece.ref, piece.box) for piece in pieces}) == kv * shape.num_layers
    for ref, box, values in pieces:
        expected = gradients.by_name[ref.name][box.low[0] : box.high[0]]
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-11)


def test_widths_that_no_tp_divides_evenly_are_computed_as_by_one_rank(group: Group) -> None:
    """Vocabulary 29 and MLP 22 over 4 ranks: 7, 7, 7, 8 and 5, 6, 5, 6; 4 layers over 3 ranks: 1, 1, 2."""
    for layout in (Layout(4), Layout(1, 3)):
        shape = make_shape(num_layers=4, tied=True)
        request = make_accumulate(make_rollout(shape, EIGHT), micro_batch=1)
        expected, prepared = accumulate(Alone(shape).view, request)
        group.open(shape, layout, 1)
        (found,) = group.compute([request])
        assert answer(group, 0, found).loss == pytest.approx(prepared.loss, rel=1e-10)
        whole = assemble(Alone(shape).state, group.pieces(0, "gradients"), Kind.PARAMETER)
        for name, grad in expected.by_name.items():
            torch.testing.assert_close(whole[name], grad, rtol=1e-9, atol=1e-11, msg=name)
