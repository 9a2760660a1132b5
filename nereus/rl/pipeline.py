"""The pipeline schedule of one rank, and the sends that it makes.

1F1B: a rank runs as many forwards ahead as there are ranks after it, then alternates, then drains. Sends are started and
waited for at the end of the pass: Gloo's blocking send waits for the matching receive and would deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from nereus.layout.catalog import EndpointId
from nereus.rl.channels import Channel
from nereus.transport.memory import DeviceMemory

BACKWARD_TAG = 1 << 20
"""Tags of gradients start here, those of activations at 0: a step has fewer micro-batches than this."""


def one_forward_one_backward(num_micro: int, pp: int, pp_rank: int) -> Iterator[tuple[Literal["F", "B"], int]]:
    """The order in which a pipeline rank runs forwards and backwards of its micro-batches."""
    ahead = min(pp - 1 - pp_rank, num_micro)
    for index in range(ahead):
        yield "F", index
    for index in range(num_micro - ahead):
        yield "F", ahead + index
        yield "B", index
    for index in range(num_micro - ahead, num_micro):
        yield "B", index


class PipelineLink:
    """What one rank exchanges with its neighbours during one pass. Started sends hold their buffers until it ends."""

    def __init__(self, channel: Channel, ranks: tuple[EndpointId, ...], own: int, memory: DeviceMemory) -> None:
        self._channel, self._memory = channel, memory
        self._previous = ranks[own - 1] if own > 0 else None
        self._next = ranks[own + 1] if own + 1 < len(ranks) else None
        self._started: list[tuple[torch.Tensor, Any]] = []

    def receive_activation(self, like: Callable[[], torch.Tensor], micro: int) -> torch.Tensor:
        """The hidden states that the previous rank sent for a micro-batch, as a leaf that wants a gradient."""
        assert self._previous is not None
        return self._channel.receive_(like(), self._previous, micro)

    def send_activation(self, x: torch.Tensor, micro: int) -> None:
        assert self._next is not None
        self._start(x, self._next, micro)

    def receive_gradient(self, x: torch.Tensor, micro: int) -> torch.Tensor:
        """The gradient of the hidden states `x` that this rank sent."""
        assert self._next is not None
        return self._channel.receive_(torch.empty_like(x), self._next, BACKWARD_TAG + micro)

    def send_gradient(self, grad: torch.Tensor, micro: int) -> None:
        assert self._previous is not None
        self._start(grad, self._previous, BACKWARD_TAG + micro)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """One pass: at its end every send that was started is waited for, and its buffer given back, on errors too."""
        try:
            yield
            if self._started:
                self._channel.settle([handle for _, handle in self._started])
        finally:
            self._memory.free(sum(x.nbytes for x, _ in self._started), "buffers")
            self._started.clear()

    def _start(self, x: torch.Tensor, to: EndpointId, tag: int) -> None:
        buffer = x.detach().contiguous()
        self._memory.reserve("pipeline send", buffer.nbytes, "buffers")
        self._started.append((buffer, self._channel.send(buffer, to, tag)))
