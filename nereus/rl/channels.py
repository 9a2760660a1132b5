"""The communicators of one rank as its computation sees them: paced, differentiable, and absent when of one member.

tp: all-reduce inside a layer     pp: sends between pipeline ranks     dp: gradients
model: gradient norm              ends: tied embeddings                kv: kv heads that TP ranks share
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nereus.emu.groups import RankGroups
from nereus.layout.catalog import EndpointId
from nereus.rl.pacing import Pacer
from nereus.transition.collectives import COMPUTE, GroupKey
from nereus.transport.communicator import Communicator, Reduction
from nereus.transport.communicators import Communicators


class Channel:
    """One group; every operation settles the pacer first. A group of one member does nothing."""

    def __init__(self, communicator: Communicator | None, pacer: Pacer) -> None:
        self._communicator = communicator
        self._pacer = pacer

    @property
    def is_alone(self) -> bool:
        return self._communicator is None

    def reduce_(self, x: torch.Tensor, op: Reduction = "sum") -> torch.Tensor:
        """All-reduce `x` in place."""
        if self._communicator is not None:
            with self._pacer.communicating():
                self._communicator.all_reduce(x, op)
        return x

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """`x` of every member, in the order of the sorted members."""
        if self._communicator is None:
            return [x]
        outs = [torch.empty_like(x) for _ in self._communicator.members]
        with self._pacer.communicating():
            self._communicator.all_gather(outs, x)
        return outs

    def send(self, x: torch.Tensor, to: EndpointId, tag: int) -> Any:
        """Start a send; the caller keeps `x` and the handle until it has waited for it."""
        assert self._communicator is not None
        with self._pacer.communicating():
            return self._communicator.send(x, to, tag)

    def receive_(self, x: torch.Tensor, source: EndpointId, tag: int) -> torch.Tensor:
        """Receive into `x`."""
        assert self._communicator is not None
        with self._pacer.communicating():
            self._communicator.recv(x, source, tag).wait()
        return x

    def settle(self, handles: list[Any]) -> None:
        """Wait for sends that were started."""
        with self._pacer.communicating():
            for handle in handles:
                handle.wait()


@dataclass(frozen=True, slots=True)
class Channels:
    """All channels of one rank."""

    groups: RankGroups
    tp: Channel
    pp: Channel
    dp: Channel
    model: Channel
    ends: Channel
    kv: Channel

    @classmethod
    def of(cls, groups: RankGroups, pool: Communicators, pacer: Pacer) -> Channels:
        """The channels over communicators that are already made."""

        def channel(members: tuple[EndpointId, ...]) -> Channel:
            return Channel(pool.get(GroupKey.of(members, COMPUTE)) if len(members) > 1 else None, pacer)

        return cls(
            groups,
            tp=channel(groups.tp),
            pp=channel(groups.pp),
            dp=channel(groups.dp),
            model=channel(groups.model),
            ends=channel(groups.ends),
            kv=channel(groups.kv),
        )

    @classmethod
    def alone(cls, groups: RankGroups, pacer: Pacer) -> Channels:
        """The channels of a rank that computes by itself."""
        none = Channel(None, pacer)
        return cls(groups, none, none, none, none, none, none)


class _Copy(torch.autograd.Function):
    """Identity forward, sum backward: the input of a column-parallel product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, channel: Channel) -> torch.Tensor:
        ctx.channel = channel
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.channel.reduce_(grad.contiguous().clone()), None


class _Reduce(torch.autograd.Function):
    """Sum forward, identity backward: the output of a row-parallel product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, channel: Channel) -> torch.Tensor:
        return channel.reduce_(x.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def copied(x: torch.Tensor, channel: Channel) -> torch.Tensor:
    """`x` as the input of a column-parallel product: its gradient is summed over the group."""
    return x if channel.is_alone else _Copy.apply(x, channel)  # type: ignore[no-untyped-call]


def summed(x: torch.Tensor, channel: Channel) -> torch.Tensor:
    """The sum of `x` over the group, as the output of a row-parallel product."""
    return x if channel.is_alone else _Reduce.apply(x, channel)  # type: ignore[no-untyped-call]
