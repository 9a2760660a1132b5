"""Serves the app from a thread of whatever process it is in: on loopback, or with tokens on any address.

Server(app).start(8420) -> ("127.0.0.1", 8420), or on loopback the next free port
"""

from __future__ import annotations

import socket
import time
from threading import Thread

import uvicorn
from fastapi import FastAPI

from nereus.api.access import is_loopback
from nereus.api.address import DEFAULT_PORT, LOOPBACK

TRIED_PORTS = 20
"""Ports from the first on: as many jobs on one machine find a place."""

START_TIMEOUT_S = 60.0
"""Seconds until a server that does not come up is given up: it takes a tenth of one, and on a busy machine many."""


class Server:
    """One app on one port."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._server: uvicorn.Server | None = None
        self._thread: Thread | None = None

    def start(self, port: int = DEFAULT_PORT, host: str = LOOPBACK) -> tuple[str, int]:
        """Serve on `port` (0: any), or on loopback the next free one; returns where.

        Raises OSError when none is free, UserError for a host that others reach while the app has no tokens.
        """
        self._app.state.access.check_host(host)
        listener = listen(port, host)
        host, bound = listener.getsockname()[:2]
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="warning",
            access_log=False,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, kwargs={"sockets": [listener]}, name="api", daemon=True)
        self._thread.start()
        self._wait_until_up()
        return host, bound

    def stop(self) -> None:
        """End the server and wait for it."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()

    def _wait_until_up(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        end = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                raise OSError("the API did not come up")
            time.sleep(0.01)


def listen(port: int, host: str = LOOPBACK) -> socket.socket:
    """A listening socket on `host`, at `port`; on loopback also at the next free one.

    What others reach is at the port that they were told: a Service or a scrape does not look for another one.
    """
    tried = TRIED_PORTS if port and is_loopback(host) else 1
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for candidate in range(port, min(port + tried, 2**16)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen()
        except OSError as error:
            listener.close()
            last = error
            continue
        return listener
    wanted = f"port {port}" if tried == 1 else f"{tried} ports from {port} on"
    raise OSError(f"{host}: {wanted} not free ({last}); give another --port")
