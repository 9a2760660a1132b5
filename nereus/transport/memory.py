"""The memory ledger of one device: what is really allocated, by category, and a hard capacity.

Whoever allocates a tensor that lasts reserves its bytes first and frees them after; a reservation that does not fit is
refused with the operation's name, before anything is allocated. It is the only place where a device's capacity is known
at run time, and the figure that predictions of peak memory are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Literal, get_args

from nereus.errors import OutOfDeviceMemory, StoreError

Category = Literal["units", "gradients", "activations", "kv", "buffers"]
"""What bytes are for: shards of units, transients of a training or generation call, or buffers of a movement."""

CATEGORIES: tuple[Category, ...] = get_args(Category)


class DeviceMemory:
    """The ledger of one device. Every method may be called from any thread."""

    def __init__(self, device: str, capacity_bytes: int) -> None:
        self.device = device
        self.capacity_bytes = capacity_bytes
        self._used: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
        self._peak_bytes = 0
        self._lock = Lock()

    def reserve(self, operation: str, num_bytes: int, category: Category) -> None:
        """Take `num_bytes` for `operation`. Raises OutOfDeviceMemory, and then has reserved nothing."""
        with self._lock:
            used = sum(self._used.values())
            if num_bytes < 0 or used + num_bytes > self.capacity_bytes:
                raise OutOfDeviceMemory(self.device, operation, num_bytes, used, self.capacity_bytes)
            self._used[category] += num_bytes
            self._peak_bytes = max(self._peak_bytes, used + num_bytes)

    def free(self, num_bytes: int, category: Category) -> None:
        """Give bytes back. Raises StoreError when the category does not hold that many."""
        with self._lock:
            if not 0 <= num_bytes <= self._used[category]:
                raise StoreError(
                    f"device {self.device}: {num_bytes} bytes of {category} freed, {self._used[category]} are reserved; "
                    "something is freed twice or in another category"
                )
            self._used[category] -= num_bytes

    @contextmanager
    def holding(self, operation: str, num_bytes: int, category: Category) -> Iterator[None]:
        """Hold bytes for the length of a block. Raises OutOfDeviceMemory before the block starts."""
        self.reserve(operation, num_bytes, category)
        try:
            yield
        finally:
            self.free(num_bytes, category)

    @property
    def used_bytes(self) -> int:
        """Bytes reserved now."""
        with self._lock:
            return sum(self._used.values())

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were reserved at once since the last `reset_peak`."""
        with self._lock:
            return self._peak_bytes

    def reset_peak(self) -> None:
        """Start measuring the peak again, from what is reserved now."""
        with self._lock:
            self._peak_bytes = sum(self._used.values())

    def by_category(self) -> dict[Category, int]:
        """Bytes reserved now, by category."""
        with self._lock:
            return dict(self._used)
