"""What the operating system says of this machine: its name, the memory that processes may have, its network ports.

/proc/meminfo, /sys/fs/cgroup   -> bytes        /sys/class/infiniband, /sys/class/net -> bytes per second
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

BITS = 8
"""Of a byte."""
MEGABIT, GIGABIT = 10**6, 10**9
"""Bits, as the kernel prints rates."""


@dataclass(frozen=True)
class Machine:
    """The machine whose files lie under a root."""

    root: Path = Path("/")

    @property
    def name(self) -> str:
        """Of the host."""
        return socket.gethostname()

    @property
    def memory_bytes(self) -> int:
        """What processes may have together: the host's memory, or less where a control group limits it."""
        lines = (self.root / "proc/meminfo").read_text().splitlines()
        total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
        limits = [_number(self.root / "sys/fs/cgroup" / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
        return min([total, *(limit for limit in limits if limit)])

    @property
    def network_bytes_s(self) -> int | None:
        """Of all ports that are up, in one direction: the RDMA ports where there are any, else the Ethernet cards.

        An RDMA port that carries Ethernet is a card too, and counts once. Virtual cards have no device below them.
        """
        ports = [_port_bytes_s(port) for port in sorted(self.root.glob("sys/class/infiniband/*/ports/*"))]
        cards = [_card_bytes_s(card) for card in sorted(self.root.glob("sys/class/net/*")) if (card / "device").exists()]
        return sum(ports) or sum(cards) or None


def _port_bytes_s(port: Path) -> int:
    """`state` is such as `4: ACTIVE`, `rate` such as `400 Gb/sec (4X NDR)`."""
    if "ACTIVE" not in _text(port / "state"):
        return 0
    words = _text(port / "rate").split()
    return int(float(words[0]) * GIGABIT) // BITS if words else 0


def _card_bytes_s(card: Path) -> int:
    """`speed` is in Mb/s; -1 or an error where the card doesn't say."""
    speed = _number(card / "speed") if _text(card / "operstate") == "up" else None
    return speed * MEGABIT // BITS if speed and speed > 0 else 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """The whole number in a file; None where there is none, as in `max`."""
    try:
        return int(_text(path))
    except ValueError:
        return None
