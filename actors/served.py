"""The API of the controller: that it is there, and serves. Asked with each look: one that Ray starts anew serves nothing.

start [waits] -> URL          keep [waits for nothing], once a second: serve, unless it does
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.api import Api, ControllerJobs
from actors.options import head_options


class Served:
    """The API of a controller."""

    def __init__(self, name: str, controller: str, host: str, port: int, token_file: Path | None) -> None:
        """`name` is that of its actor, `controller` that of the controller's."""
        self._name, self._jobs = name, ControllerJobs(controller)
        self._host, self._port, self._token_file = host, port, token_file
        self._api: Any = None
        self._asked: Any = None
        self._is_wanted = False
        self.url: str | None = None
        """Where it was last."""
        self.failed: str | None = None
        """Why it did not serve when it was asked last; asked again with each look."""

    def start(self) -> str:
        """Serve; returns where. Raises UserError for tokens or a host that cannot be."""
        try:
            self.url = _url(ray.get(self._ask()))
        except RayTaskError as error:
            self.end()
            raise error.cause or error from None
        self._is_wanted = True
        return self.url

    def keep(self, *, anew: bool) -> None:
        """Serve, if that was asked for; `anew`: it was, of a controller that died meanwhile."""
        self._is_wanted = self._is_wanted or anew
        try:
            self._keep()
        except RayActorError as error:
            self._api = None  # it was killed for good: the next time another is made
            self.failed = f"its API does not serve: {error}"
        except Exception as error:
            cause = error.cause if isinstance(error, RayTaskError) else None
            self.failed = f"its API does not serve: {cause or error}"

    def _keep(self) -> None:
        if self._asked is None:
            if self._is_wanted:
                self._asked = self._ask()
        elif ray.wait([self._asked], timeout=0)[0]:
            asked, self._asked = self._asked, None
            self.url, self.failed = _url(ray.get(asked)), None

    def end(self) -> None:
        """End it, if there is one, whoever has made it."""
        with suppress(ValueError):
            ray.kill(ray.get_actor(self._name))
        self._api = None

    def _ask(self) -> Any:
        if self._api is None:
            actor = ray.remote(**head_options(name=self._name, restarts=True))(Api)
            self._api = actor.options(lifetime="detached", get_if_exists=True).remote(self._jobs, self._token_file)
        return self._api.start.remote(self._port, self._host)


def _url(where: tuple[str, int]) -> str:
    host, port = where
    return f"http://{host}:{port}"
