"""Scores, gradients and updates of one rank against the loss and the optimizer written down directly, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nereus.errors import StaleUnitError
from nereus.layout.tensors import Kind
from nereus.rl.gradients import Gradients
from nereus.rl.train import Accumulate, Apply, Prepared, Score, accumulate, apply, score
from nereus.spec.model import ModelShape
from nereus.spec.training import Optimizer
from nereus.transport.digest import unit_digests
from tests.rl.group import Alone, Parameters, llama, make_accumulate, make_rollout, make_shape, whole_parameters

LENGTHS = ((2, 5), (1, 1), (6, 3), (3, 7), (4, 2))
"""Prompt and response tokens of five ragged rows: no micro-batch above one is even."""

SHAPES = {"untied": make_shape(), "tied": make_shape(tied=True, num_kv_heads=4), "mqa": make_shape(num_kv_heads=1)}
by_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)

OPTIMIZER = Optimizer(learning_rate=0.03, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1, max_grad_norm=0.5)


def row_log_probs(shape: ModelShape, parameters: Parameters, request: Accumulate | Score, row: int) -> torch.Tensor:
    """Log-probabilities of one row's response tokens, the row cut to its own length."""
    rollout = request.rollout
    start = int(rollout.prompt_length[row])
    end = start + int(rollout.response_length[row])
    tokens = rollout.tokens[row, :end]
    logits = llama(shape, parameters, tokens[None])[0, start - 1 : end - 1] / request.temperature
    return torch.log_softmax(logits, -1)[torch.arange(end - start), tokens[start:end]]


def direct(shape: ModelShape, parameters: Parameters, request: Accumulate) -> tuple[torch.Tensor, float, int]:
    """The loss, the sum of the KL estimate and the number of clipped tokens, straight from the GRPO paper."""
    rollout, grpo = request.rollout, request.grpo
    loss, kl_sum, clipped = torch.zeros((), dtype=torch.float64), 0.0, 0
    for row in range(len(rollout.tokens)):
        start = int(rollout.prompt_length[row])
        at = slice(start, start + int(rollout.response_length[row]))
        new, advantage = row_log_probs(shape, parameters, request, row), request.advantages[row]
        ratio = torch.exp(new - rollout.old_logprobs[row, at])
        bounded = ratio.clamp(1 - grpo.clip_ratio, 1 + grpo.clip_ratio)
        gap = request.ref_log_probs[row, at] - new
        kl = torch.exp(gap) - gap - 1
        loss = loss + (grpo.kl_coef * kl - torch.minimum(ratio * advantage, bounded * advantage)).sum()
        kl_sum += float(kl.detach().sum())
        clipped += int((bounded * advantage < ratio * advantage).sum())
    return loss / request.num_tokens, kl_sum, clipped


def autograd(shape: ModelShape, request: Accumulate, seed: int = 0) -> tuple[dict[str, torch.Tensor], Prepared]:
    leaves = {name: value.requires_grad_() for name, value in whole_parameters(shape, seed=seed).items()}
    loss, kl, clipped = direct(shape, leaves, request)
    loss.backward()
    grads = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    norm = float(torch.cat([grad.reshape(-1) for grad in grads.values()]).norm())
    return grads, Prepared(float(loss.detach()), kl, clipped, norm)


def check_gradients(found: Gradients, expected: dict[str, torch.Tensor]) -> None:
    assert set(found.by_name) == set(expected)
    for name, grad in expected.items():
        torch.testing.assert_close(found.by_name[name], grad, rtol=1e-10, atol=1e-12, msg=name)


def state_of(alone: Alone) -> dict[str, torch.Tensor]:
    """A copy of everything in the unit."""
    return {f"{kind}/{n}": t.clone() for kind in Kind for n, t in alone.store.tensors(alone.emu.unit, kind).items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("micro_batch", [1, 2, 5, 9])
@by_shape
def test_score_is_the_models_log_probability_of_each_response_token_and_zero_elsewhere(
    shape: ModelShape, micro_batch: int
) -> None:
    request = Score(make_rollout(shape, LENGTHS), micro_batch, temperature=0.7)
    found = score(Alone(shape).view, request)
    assert found is not None
    expected = torch.zeros_like(found)
    for row, (prompt, response) in enumerate(LENGTHS):
        expected[row, prompt : prompt + response] = row_log_probs(shape, whole_parameters(shape), request, row)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert torch.equal(found != 0, request.rollout.response_mask)


@pytest.mark.parametrize("micro_batch", [1, 2, 5])
@by_shape
def test_gradient_is_that_of_the_loss_written_down_directly(shape: ModelShape, micro_batch: int) -> None:
    request = make_accumulate(make_rollout(shape, LENGTHS), micro_batch=micro_batch)
    gradients, prepared = accumulate(Alone(shape).view, request)
    expected, values = autograd(shape, request)
    check_gradients(gradients, expected)
    assert 0 < values.clipped < sum(response for _, response in LENGTHS), "some tokens are clipped, others are not"
    assert prepared.loss == pytest.approx(values.loss, rel=1e-11)
    assert prepared.kl == pytest.approx(values.kl, rel=1e-11)
    assert prepared.clipped == values.clipped
    assert prepared.grad_norm == pytest.approx(values.grad_norm, rel=1e-11)


@by_shape
def test_recomputed_layers_give_the_same_gradient_bit_for_bit(shape: ModelShape) -> None:
    request = make_accumulate(make_rollout(shape, LENGTHS))
    kept, prepared = accumulate(Alone(shape).view, request)
    again, prepared_again = accumulate(Alone(shape).view, replace(request, recompute=True))
    assert all(torch.equal(grad, again.by_name[name]) for name, grad in kept.by_name.items())
    assert prepared_again == prepared


def test_replicas_shares_add_up_to_the_gradient_of_the_whole_minibatch() -> None:
    shape = SHAPES["untied"]
    whole = make_accumulate(make_rollout(shape, LENGTHS))
    expected, values = autograd(shape, whole)
    total: dict[str, torch.Tensor] = {}
    loss = 0.0
    for low, high in ((0, 2), (2, 5)):
        part = Accumulate(
            rollout=whole.rollout.rows(low, high),
            advantages=whole.advantages[low:high],
            ref_log_probs=whole.ref_log_probs[low:high],
            num_tokens=whole.num_tokens,
            micro_batch=2,
            grpo=whole.grpo,
            temperature=whole.temperature,
        )
        gradients, prepared = accumulate(Alone(shape).view, part)
        loss += prepared.loss
        for name, grad in gradients.by_name.items():
            total[name] = total.get(name, torch.zeros(())) + grad
    assert loss == pytest.approx(values.loss, rel=1e-11)
    for name, grad in expected.items():
        torch.testing.assert_close(total[name], grad, rtol=1e-10, atol=1e-12, msg=name)


def test_accumulate_leaves_parameters_moments_and_counters_alone() -> None:
    alone = Alone(SHAPES["untied"])
    before = state_of(alone)
    accumulate(alone.view, make_accumulate(make_rollout(alone.shape, LENGTHS)))
    assert same(before, state_of(alone))
    assert all(parameter.grad is None for parameter in alone.parameters.values())


def update(alone: Alone, number: int, seed: int = 0) -> Prepared:
    gradients, prepared = accumulate(alone.view, make_accumulate(make_rollout(alone.shape, LENGTHS, seed=seed), seed=seed))
    apply(alone.view, Apply(number, 10 * number, 100 * number, prepared.grad_norm, OPTIMIZER), gradients)
    gradients.free()
    return prepared


def test_updates_are_those_of_torch_adamw_on_clipped_gradients() -> None:
    shape = SHAPES["tied"]
    alone = Alone(shape)
    leaves = {name: value.requires_grad_() for name, value in whole_parameters(shape).items()}
    adamw = torch.optim.AdamW(leaves.values(), lr=0.03, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1, foreach=False)
    for number in (1, 2, 3):
        adamw.zero_grad()
        request = make_accumulate(make_rollout(shape, LENGTHS, seed=number), seed=number)
        direct(shape, leaves, request)[0].backward()
        norm = float(torch.nn.utils.clip_grad_norm_(leaves.values(), 0.5))
        assert norm > 0.5, "the gradient is clipped"
        adamw.step()
        assert update(alone, number, seed=number).grad_norm == pytest.approx(norm, rel=1e-9)
        for name, leaf in leaves.items():
            torch.testing.assert_close(alone.parameters[name], leaf.detach(), rtol=1e-9, atol=1e-11, msg=name)


def test_apply_moves_the_counters_forward() -> None:
    alone = Alone(SHAPES["untied"])
    update(alone, 1)
    update(alone, 2)
    counters = {name: int(value) for name, value in alone.view.counters.items()}
    assert counters == {"updates": 2, "model_version": 20, "policy_version": 20, "position": 200}


def test_repeated_apply_of_one_update_changes_nothing() -> None:
    alone = Alone(SHAPES["untied"])
    update(alone, 1)
    after = state_of(alone)
    update(alone, 1, seed=7)
    assert same(after, state_of(alone))


@pytest.mark.parametrize("number", [2, 5])
def test_apply_refuses_an_update_whose_predecessor_is_missing_and_changes_nothing(number: int) -> None:
    alone = Alone(SHAPES["untied"])
    before = state_of(alone)
    with pytest.raises(StaleUnitError, match=f"is at update 0 and cannot apply update {number}"):
        update(alone, number)
    assert same(before, state_of(alone))


def test_update_changes_the_digest_of_every_tensor_and_a_refused_one_of_none() -> None:
    alone = Alone(SHAPES["untied"])
    before = unit_digests(alone.store, alone.emu.unit)
    with pytest.raises(StaleUnitError):
        update(alone, 2)
    assert unit_digests(alone.store, alone.emu.unit) == before
    update(alone, 1)
    pairs = zip(before, unit_digests(alone.store, alone.emu.unit), strict=True)
    assert [old.ref for old, new in pairs if old == new] == []
