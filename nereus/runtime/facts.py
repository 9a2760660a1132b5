"""What ports report: past-tense facts, each of which names the call that it completes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nereus.emu.digest import BoxDigest
from nereus.emu.plan import DeviceId
from nereus.layout.catalog import EndpointId, UnitId


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An endpoint has its program: communicators made, memory checked, nothing moved."""

    endpoint: EndpointId
    epoch: int
    setup_s: float
    groups_made: int
    groups_reused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCompleted:
    """One endpoint has done its part of an operation."""

    endpoint: EndpointId
    op: str
    bytes_received: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFailed:
    """One endpoint could not do what it was asked; `error` is the exception."""

    endpoint: EndpointId
    op: str
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestsTaken:
    """The digests of every box that an endpoint holds of the units asked for."""

    endpoint: EndpointId
    digests: Mapping[UnitId, tuple[BoxDigest, ...]]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """An endpoint serves the units of this epoch, and has released the others."""

    endpoint: EndpointId
    epoch: int
    peak_bytes: int
    """Highest use of its device's memory during the transition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReady:
    """A new endpoint serves a device."""

    device: DeviceId
    endpoint: EndpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDied:
    """A process that held shards is gone, with all that it held."""

    endpoint: EndpointId
    during: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """An endpoint holds the first state of its newborn units."""

    endpoint: EndpointId


Fact = Seeded | Installed | OpCompleted | OpFailed | DigestsTaken | Committed | DeviceReady | EndpointDied
