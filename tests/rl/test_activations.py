"""What autograd keeps, metered in the ledger: all of it given back, and as much as the memory model says."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from nereus.cost.batch import Batch
from nereus.cost.ledger import ledger_footprint
from nereus.emu.plan import StagePlan
from nereus.errors import OutOfDeviceMemory
from nereus.layout.layout import Layout
from nereus.rl.activations import ActivationMeter
from nereus.rl.train import accumulate
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_TRAINING
from nereus.transport.memory import DeviceMemory
from tests.rl.group import Alone, make_accumulate, make_rollout, make_shape


def wide(*, tied: bool = False, num_heads: int = 4, num_kv_heads: int = 2, **changes: int) -> ModelShape:
    """Wide enough that what the model leaves out (token ids, masks, scalars) is small."""
    sizes = {"hidden_size": 48, "head_dim": 12, "ffn_size": 96, "vocab_size": 64, **changes}
    return make_shape(tied=tied, num_heads=num_heads, num_kv_heads=num_kv_heads, **sizes)


SHAPES = {
    "grouped heads": wide(),
    "tied": wide(tied=True),
    "one kv head per head": wide(num_kv_heads=4),
    "one kv head": wide(num_kv_heads=1),
    "many layers": wide(num_layers=6),
    "large vocabulary": wide(vocab_size=500),
    "large vocabulary, tied": wide(vocab_size=500, tied=True),
    "wide MLP": wide(ffn_size=300),
    "narrow queries": wide(num_heads=2, num_kv_heads=1),
}


def metered(memory: DeviceMemory, *known: torch.Tensor) -> ActivationMeter:
    return ActivationMeter(memory, known)


def test_storage_is_counted_once_however_often_it_is_saved() -> None:
    memory, weight = DeviceMemory("d0", 1 << 20), torch.ones(8, 8, dtype=torch.float64, requires_grad=True)
    with metered(memory, weight):
        x = torch.ones(4, 8, dtype=torch.float64) @ weight  # saves the 4 x 8 ones
        y = x.exp()  # saves y
        out = (y * y).sum()  # saves y twice
        assert memory.by_category()["activations"] == 2 * 4 * 8 * 8
    out.backward()
    assert memory.used_bytes == 0


def test_known_storages_are_left_out_and_views_of_them_too() -> None:
    memory, weight = DeviceMemory("d0", 1 << 20), torch.ones(8, 8, dtype=torch.float64, requires_grad=True)
    with metered(memory, weight):
        out = (weight[2:4] * weight[4:6]).sum()
        assert memory.used_bytes == 0
    out.backward()


def test_graph_that_is_dropped_without_backward_gives_its_bytes_back() -> None:
    memory, x = DeviceMemory("d0", 1 << 20), torch.ones(16, dtype=torch.float64, requires_grad=True)
    with metered(memory, x):
        out = x.exp().exp()
        assert memory.used_bytes == 2 * 16 * 8
    del out
    gc.collect()
    assert memory.used_bytes == 0


def test_values_saved_through_the_meter_give_the_same_gradient() -> None:
    plain, seen = (torch.linspace(0.1, 1, 20, dtype=torch.float64).requires_grad_() for _ in range(2))
    (plain.sin() * plain.exp()).sum().backward()
    with metered(DeviceMemory("d0", 1 << 20)):
        (seen.sin() * seen.exp()).sum().backward()
    assert torch.equal(plain.grad, seen.grad)  # type: ignore[arg-type]


def test_activation_that_does_not_fit_is_refused_and_nothing_stays_reserved() -> None:
    memory, x = DeviceMemory("d0", 3 * 16 * 8), torch.ones(16, dtype=torch.float64, requires_grad=True)

    def too_deep() -> None:
        with metered(memory, x):
            y = x
            for _ in range(5):
                y = y.exp()

    with pytest.raises(OutOfDeviceMemory, match="activations needs 128 bytes, 384 of 384 are in use"):
        too_deep()
    gc.collect()
    assert memory.used_bytes == 0


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_accumulate_frees_every_activation(micro_batch: int) -> None:
    alone = Alone(make_shape())
    gradients, _ = accumulate(
        alone.view, make_accumulate(make_rollout(alone.shape, ((2, 5), (4, 4), (1, 3))), micro_batch=micro_batch)
    )
    held = alone.memory.by_category()
    assert (held["activations"], held["buffers"], held["kv"]) == (0, 0, 0)
    gradients.free()
    assert alone.memory.used_bytes == alone.state_bytes


def measured_and_predicted(
    shape: ModelShape, dtype: str, rows: int, micro_batch: int, prompt: int, response: int, *, recompute: bool = False
) -> tuple[int, int]:
    """Peak bytes above the unit's state while one rank accumulates."""
    alone = Alone(shape, dtype=dtype)
    alone.memory.reset_peak()
    rollout = make_rollout(shape, ((prompt, response),) * rows, dtype=dtype)
    accumulate(alone.view, replace(make_accumulate(rollout, micro_batch=micro_batch), recompute=recompute))
    plan = StagePlan(ACTOR_TRAINING, Layout(), 1, (0,), micro_batch, recompute=recompute)
    footprint = ledger_footprint(plan, 0, alone.state, shape.decoder, dtype, Batch(rows, prompt, response))
    assert footprint.state == alone.state_bytes
    return alone.memory.peak_bytes - alone.state_bytes, footprint.live


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_peak_of_training_is_what_the_memory_model_says(shape: ModelShape, dtype: str, recompute: bool) -> None:
    measured, predicted = measured_and_predicted(shape, dtype, 4, 2, prompt=6, response=18, recompute=recompute)
    assert predicted == pytest.approx(measured, rel=0.05)


def test_recomputed_layers_keep_what_enters_them_and_one_layers_activations() -> None:
    """Per token: 6 layers of h, against 6 layers of everything; the rest of the peak is gradients and logits."""
    shape = SHAPES["many layers"]
    kept, _ = measured_and_predicted(shape, "float32", 4, 4, prompt=6, response=18)
    again, _ = measured_and_predicted(shape, "float32", 4, 4, prompt=6, response=18, recompute=True)
    queries, heads = shape.num_heads * shape.head_dim, shape.num_heads
    layer = 6 * shape.hidden_size + 5 * queries + 4 * shape.ffn_size + heads
    logits = 4 * 18 * (3 * shape.hidden_size + 2 * shape.vocab_size)
    saved = 4 * 24 * 6 * (layer - shape.hidden_size) - max(0, 4 * 24 * (layer - shape.hidden_size) - logits)
    assert kept - again == pytest.approx(4 * saved, rel=0.02)


@pytest.mark.parametrize(
    ("rows", "micro_batch", "prompt", "response"), [(1, 1, 4, 60), (6, 6, 4, 12), (8, 4, 30, 2), (5, 2, 8, 8)]
)
def test_peak_follows_the_batch_as_the_memory_model_says(rows: int, micro_batch: int, prompt: int, response: int) -> None:
    measured, predicted = measured_and_predicted(SHAPES["grouped heads"], "float32", rows, micro_batch, prompt, response)
    assert predicted == pytest.approx(measured, rel=0.05)
