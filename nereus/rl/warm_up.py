"""Runs every stage program once on a throwaway unit, before a worker counts as ready.

The first step of a new process is several times slower than the second: modules are imported on first use (the first
backward with an explicit gradient imports sympy, 0.4 s of CPU) and kernels are set up. At a paced device's speed that is
seconds, and it would be measured as if it were the plan's.
"""

from __future__ import annotations

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from nereus.emu.unit import Emu, counter_tensors
from nereus.layout.catalog import EndpointId, UnitId
from nereus.layout.dense import state_spec
from nereus.layout.layout import Layout
from nereus.rl.endpoint import NativeEndpoint
from nereus.rl.generate import Generate, Generated, Sampling
from nereus.rl.programs import Request, Result
from nereus.rl.rollouts import Rollout
from nereus.rl.train import Accumulate, Apply, Prepared, Score
from nereus.rl.weights import RandomWeights
from nereus.spec.model import ModelShape
from nereus.spec.training import Grpo, Optimizer
from nereus.transport.communicators import Communicators
from nereus.transport.memory import DeviceMemory

TINY = ModelShape(
    hidden_size=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, ffn_size=16, vocab_size=16, rope_theta=1e4
)
"""A model that takes every path of the real one in no time."""

ROOM_BYTES = 2**26
"""More than the tiny unit needs; it is not counted on the device's own ledger."""


def warm_up(endpoint: EndpointId, device: torch.device, dtype: str) -> None:
    """Generate, score and train two tiny rows on `device`."""
    worker = NativeEndpoint(
        endpoint=endpoint,
        device=device,
        memory=DeviceMemory("warm-up", ROOM_BYTES),
        speed=None,
        shape=TINY,
        communicators=Communicators(HashStore(), endpoint, device, timeout_s=1.0),
        weights=RandomWeights(0, TINY),
    )
    unit = Emu(UnitId("actor_training", 0, 0), Layout(), (endpoint,))
    worker.seed([unit], {unit.stage: state_spec(TINY, dtype, counter_tensors(), optimizer=True)})
    worker.bind(0, (unit,), frozenset())

    def run(request: Request) -> Result:
        return worker.compute(unit.unit, 0, request).result

    generated = run(Generate(torch.arange(2), ((1, 2), (3,)), Sampling(2, 1.0, None, 0), 2))
    assert isinstance(generated, Generated)
    rollout = _rollout(generated)
    scored = run(Score(rollout, 2, 1.0))
    assert isinstance(scored, torch.Tensor)
    prepared = run(Accumulate(rollout, torch.ones(2), scored, 4, 1, Grpo(), 1.0))
    assert isinstance(prepared, Prepared)
    run(Apply(1, 1, 2, prepared.grad_norm, Optimizer(learning_rate=1e-3)))
    leaf = torch.ones(1, requires_grad=True)
    (leaf * 2).backward(torch.ones(1))  # type: ignore[no-untyped-call]


def _rollout(generated: Generated) -> Rollout:
    """The two rows as a rollout."""
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    return Rollout(
        sample_ids=torch.arange(2),
        prompt_index=torch.arange(2),
        tokens=tokens,
        prompt_length=torch.tensor([2, 1]),
        response_length=generated.lengths,
        old_logprobs=torch.zeros(2, 4, dtype=generated.log_probs.dtype),
        rewards=torch.zeros(2, dtype=torch.float64),
    )
