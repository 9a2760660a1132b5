"""The rendezvous: a TCPStore outside all ranks, so that a rank's death takes no communicator's bookkeeping with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


class Rendezvous:
    """Serves the store through which communicators find each other and aborts travel."""

    def __init__(self) -> None:
        self._store: Any = None

    def start(self, host: str) -> tuple[str, int]:
        """Open the store on a free port of `host`; returns its address."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        if self._store is None:
            self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return host, int(self._store.port)


def connect(address: tuple[str, int], timeout_s: float) -> Any:
    """A client of the rendezvous. One thread uses it at a time."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = address
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
