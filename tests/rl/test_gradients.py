"""The flat gradient of one rank: views, bytes, and a norm that counts each element once."""

from __future__ import annotations

import pytest
import torch

from nereus.errors import OutOfDeviceMemory
from nereus.rl.gradients import Gradients
from nereus.rl.train import accumulate
from nereus.transport.memory import DeviceMemory
from tests.rl.group import Alone, make_accumulate, make_rollout, make_shape, whole_parameters


def leaves(*, tied: bool = False) -> dict[str, torch.Tensor]:
    return {name: value.requires_grad_() for name, value in whole_parameters(make_shape(tied=tied)).items()}


def test_gradient_of_every_leaf_is_a_view_of_one_zeroed_buffer() -> None:
    parameters = leaves()
    gradients = Gradients.zeros(parameters, DeviceMemory("d0", 1 << 20))
    (flat,) = gradients.all()
    assert flat.numel() == sum(p.numel() for p in parameters.values()) == make_shape().num_parameters
    assert not flat.any()
    for name, parameter in parameters.items():
        assert parameter.grad is gradients.by_name[name]
        assert parameter.grad.shape == parameter.shape
        assert parameter.grad.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    flat += torch.arange(flat.numel())
    assert torch.equal(torch.cat([gradients.by_name[name].reshape(-1) for name in parameters]), flat)


def test_buffer_is_reserved_until_it_is_freed() -> None:
    memory = DeviceMemory("d0", 1 << 20)
    gradients = Gradients.zeros(leaves(), memory)
    assert memory.by_category()["gradients"] == memory.used_bytes == 8 * make_shape().num_parameters
    gradients.free()
    assert memory.used_bytes == 0


def test_buffer_that_does_not_fit_is_refused_before_it_is_made() -> None:
    memory = DeviceMemory("d0", 8 * make_shape().num_parameters - 1)
    parameters = leaves()
    with pytest.raises(OutOfDeviceMemory, match="gradients"):
        Gradients.zeros(parameters, memory)
    assert memory.used_bytes == 0
    assert all(parameter.grad is None for parameter in parameters.values())


@pytest.mark.parametrize("tied", [True, False])
def test_global_norm_on_one_rank_is_the_norm_of_the_flat_gradient(tied: bool) -> None:
    alone = Alone(make_shape(tied=tied))
    gradients, prepared = accumulate(alone.view, make_accumulate(make_rollout(alone.shape, ((2, 5), (3, 3)))))
    (flat,) = gradients.all()
    assert prepared.grad_norm == pytest.approx(float(flat.norm()), rel=1e-13)
    assert prepared.grad_norm > 0


def test_sums_over_ranks_leave_the_gradient_of_a_lone_rank_as_it_is() -> None:
    alone = Alone(make_shape(tied=True, num_kv_heads=1))
    gradients, _ = accumulate(alone.view, make_accumulate(make_rollout(alone.shape, ((2, 5), (3, 3)))))
    before = gradients.all()[0].clone()
    gradients.sum_over_ranks(alone.view)
    assert torch.equal(gradients.all()[0], before)
