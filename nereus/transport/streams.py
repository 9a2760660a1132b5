"""The CUDA streams of one endpoint: one for each lane, so that state moves beside what is computed; on a CPU there is none.

    lane("compute"): wait for the other lanes' last events -> kernels .. -> record an event
    lane("transfer"): the same on its own stream            -> wait("transfer"): the host waits for that stream only

A lane is one thread, and lanes see each other's tensors: who reads what another has written waits for the event that was
recorded after it, on the device and not on the host. Memory goes back to the stream that it was allocated on; where others
may have used it, the allocator is told before (`released`), or it would be given away while kernels still read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch


class Streams:
    """The lanes of one endpoint. Each lane is entered by its own thread; `released` may be called from any."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """`cuda` has `Stream`, `Event` and `stream` as torch.cuda; a stand-in shows the order without a GPU."""
        self._device = device
        self._cuda = cuda
        self._streams: dict[str, Any] = {}
        self._ended: dict[str, Any] = {}
        """The event after the last kernel of each lane."""
        self._lock = Lock()

    @contextmanager
    def lane(self, name: str) -> Iterator[None]:
        """What is launched inside runs on the lane's stream, after what the others had launched when they left theirs."""
        if self._device.type != "cuda":
            yield
            return
        stream, before = self._enter(name)
        with self._cuda.stream(stream):
            for event in before:
                stream.wait_event(event)
            try:
                yield
            finally:
                event = self._cuda.Event()
                event.record(stream)
                with self._lock:
                    self._ended[name] = event

    def wait(self, name: str) -> None:
        """Returns when all that the lane had launched is done; other lanes' kernels may run on."""
        with self._lock:
            event = self._ended.get(name)
        if event is not None:
            event.synchronize()

    def released(self, tensor: Any) -> None:
        """The memory of a tensor is given back: not before every lane's stream has done what it has launched by now."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            tensor.record_stream(stream)

    def _enter(self, name: str) -> tuple[Any, list[Any]]:
        """The lane's stream, and the events that it has to wait for."""
        with self._lock:
            if name not in self._streams:
                self._streams[name] = self._cuda.Stream(self._device)
            return self._streams[name], [event for other, event in self._ended.items() if other != name]
