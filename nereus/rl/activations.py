"""What autograd keeps between forward and backward, measured rather than estimated.

Every tensor that a graph saves passes through a hook; its storage is counted once in the device's ledger while any saved
tensor refers to it. Parameters and gradients are counted elsewhere and left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch

from nereus.transport.memory import DeviceMemory


class _Saved:
    """One saved tensor; dropping it gives its share of the storage back."""

    __slots__ = ("_key", "_meter", "tensor")

    def __init__(self, tensor: torch.Tensor, meter: ActivationMeter, key: int) -> None:
        self.tensor, self._meter, self._key = tensor, meter, key

    def __del__(self) -> None:
        self._meter.drop(self._key)


class ActivationMeter:
    """A context in which forwards are metered. Storages in `known` (parameters, inputs counted elsewhere) are left out."""

    def __init__(self, memory: DeviceMemory, known: Iterable[torch.Tensor]) -> None:
        self._memory = memory
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._live: dict[int, list[int]] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self) -> ActivationMeter:
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self._known:
            if key not in self._live:
                self._memory.reserve("activations", storage.nbytes(), "activations")
                self._live[key] = [0, storage.nbytes()]
            self._live[key][0] += 1
        # Detached: a saved output knows its own graph, and would keep it alive for ever.
        return _Saved(tensor.detach(), self, key)

    def drop(self, key: int) -> None:
        """One saved tensor of this storage is gone."""
        entry = self._live.get(key)
        if entry is None:
            return
        entry[0] -= 1
        if entry[0] == 0:
            del self._live[key]
            self._memory.free(entry[1], "activations")
