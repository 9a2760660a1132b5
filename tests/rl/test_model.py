"""The decoder against the whole model written once more from the HF definition."""

from __future__ import annotations

import pytest
import torch

from nereus.emu.groups import rank_groups
from nereus.emu.unit import Emu
from nereus.layout.catalog import UnitId
from nereus.layout.layout import Layout
from nereus.rl.channels import Channels
from nereus.rl.model import Decoder
from nereus.rl.pacing import Pacer
from nereus.spec.model import ModelShape
from tests.rl.group import llama, make_shape, whole_parameters

SHAPES = {
    "grouped": make_shape(),
    "tied": make_shape(tied=True),
    "one kv head each": make_shape(num_kv_heads=4),
    "one kv head in all": make_shape(num_kv_heads=1, tied=True),
    "one layer, wide heads": make_shape(num_layers=1, head_dim=10, num_heads=2, num_kv_heads=1),
}
by_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def decoder(shape: ModelShape, layout: Layout = Layout(), rank: int = 0) -> Decoder:  # noqa: B008 - it is frozen
    emu = Emu(UnitId("actor_training", 0, 0), layout, tuple(f"d{i}.0" for i in range(layout.size)))
    channels = Channels.alone(rank_groups((emu,), 0, rank, shape.num_kv_heads), Pacer(None))
    return Decoder(shape, layout, rank, whole_parameters(shape), channels)


def tokens(shape: ModelShape, rows: int = 3, length: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(shape.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def logits(model: Decoder, ids: torch.Tensor, start: int = 0) -> torch.Tensor:
    positions = torch.arange(start, start + ids.shape[1]).expand_as(ids)
    return model.logits(model.run_layers(model.embed(ids), positions))


@by_shape
def test_logits_are_those_of_the_published_model(shape: ModelShape) -> None:
    ids = tokens(shape)
    expected = llama(shape, whole_parameters(shape), ids)
    assert expected.std() > 0.3, "a model that says nothing proves nothing"
    torch.testing.assert_close(logits(decoder(shape), ids), expected, rtol=1e-11, atol=1e-11)


def test_every_part_of_the_model_matters_to_the_logits() -> None:
    shape = make_shape()
    ids, parameters = tokens(shape), whole_parameters(shape)
    expected = llama(shape, parameters, ids)
    for name in parameters:
        changed = {**parameters, name: parameters[name] * 1.1}
        assert not torch.allclose(llama(shape, changed, ids), expected, rtol=1e-3), name


def test_attention_sees_distances_only() -> None:
    shape = SHAPES["grouped"]
    ids = tokens(shape)
    torch.testing.assert_close(logits(decoder(shape), ids, 37), logits(decoder(shape), ids), rtol=1e-10, atol=1e-10)


def test_later_tokens_have_no_effect_so_right_padding_needs_no_mask() -> None:
    shape = SHAPES["grouped"]
    ids = tokens(shape)
    padded = torch.cat([ids[:, :5], torch.zeros(3, 7, dtype=torch.int64)], 1)
    torch.testing.assert_close(
        logits(decoder(shape), padded)[:, :5], logits(decoder(shape), ids)[:, :5], rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("pp", [2, 3])
def test_pipeline_ranks_one_after_the_other_are_the_whole_model(pp: int) -> None:
    shape = make_shape(num_layers=5)
    ids = tokens(shape)
    ranks = [decoder(shape, Layout(1, pp), rank) for rank in range(pp)]
    assert [layer for rank in ranks for layer in rank.layers] == list(range(5))
    hidden = ranks[0].embed(ids)
    for rank in ranks:
        hidden = rank.run_layers(hidden, torch.arange(9).expand_as(ids))
    torch.testing.assert_close(ranks[-1].logits(hidden), llama(shape, whole_parameters(shape), ids), rtol=1e-11, atol=1e-11)
    assert [rank.is_first for rank in ranks] == [True] + [False] * (pp - 1)
    assert [rank.is_last for rank in ranks] == [False] * (pp - 1) + [True]


@pytest.mark.parametrize("scale", [1.0, 50.0, 5000.0])
def test_log_probs_are_those_of_log_softmax(scale: float) -> None:
    generator = torch.Generator().manual_seed(4)
    local = torch.randn(40, 29, generator=generator, dtype=torch.float64) * scale
    targets = torch.randint(29, (40,), generator=generator)
    expected = torch.log_softmax(local, -1)[torch.arange(40), targets]
    torch.testing.assert_close(decoder(make_shape()).log_probs(local, targets), expected, rtol=1e-12, atol=1e-10)


def test_gradient_of_log_probs_is_that_of_log_softmax() -> None:
    generator = torch.Generator().manual_seed(5)
    ours = torch.randn(20, 29, generator=generator, dtype=torch.float64).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    targets = torch.randint(29, (20,), generator=generator)
    weights = torch.randn(20, generator=generator, dtype=torch.float64)
    (decoder(make_shape()).log_probs(ours, targets) * weights).sum().backward()
    (torch.log_softmax(theirs, -1)[torch.arange(20), targets] * weights).sum().backward()
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-13)


@by_shape
def test_gradient_of_every_parameter_is_that_of_the_published_model(shape: ModelShape) -> None:
    ids = tokens(shape)
    weights = torch.randn(3, 9, shape.vocab_size, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    ours, theirs = ({n: p.requires_grad_() for n, p in whole_parameters(shape).items()} for _ in range(2))
    emu = Emu(UnitId("actor_training", 0, 0), Layout(), ("d0.0",))
    channels = Channels.alone(rank_groups((emu,), 0, 0, shape.num_kv_heads), Pacer(None))
    (logits(Decoder(shape, Layout(), 0, ours, channels), ids) * weights).sum().backward()
    (llama(shape, theirs, ids) * weights).sum().backward()
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-9, atol=1e-9, msg=name)
