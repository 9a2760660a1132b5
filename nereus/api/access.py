"""Who may ask the API: anybody on loopback, or whoever holds a token of the file that the server was started with.

Authorization: Bearer TOKEN -> role -> GET: viewer or operator    POST: operator      /livez, /readyz: anybody
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from nereus.api.problems import Kind, problem
from nereus.errors import UserError
from nereus.spec.tokens import Role, Token, read_tokens

OPEN_PATHS = ("/livez", "/readyz")
"""Probes of a kubelet carry no token."""

READING = ("GET", "HEAD")

NEEDED = (
    "send `Authorization: Bearer TOKEN` with a token of the server's token file; commands take --token-file FILE, or "
    "NEREUS_TOKEN_FILE in the environment"
)
"""What is wrong with a request without a good token."""


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens that are good; with none, everybody may do everything, so it is served on loopback only."""

    tokens: tuple[Token, ...] = ()

    @classmethod
    def read(cls, path: Path | None) -> Access:
        """The tokens of a file; without a file none. Raises UserError where it is not one."""
        return cls(() if path is None else read_tokens(path))

    @property
    def is_open(self) -> bool:
        return not self.tokens

    def role_of(self, authorization: str | None) -> Role | None:
        """What the header allows; None for nothing. Every token is compared whole, so that time tells nothing."""
        scheme, _, given = (authorization or "").partition(" ")
        found: Role | None = None
        for token in self.tokens:
            if hmac.compare_digest(token.secret.encode(), given.strip().encode("utf-8", "replace")):
                found = token.role
        return found if scheme.lower() == "bearer" else None

    def check_host(self, host: str) -> None:
        """Raises UserError for a host that others can reach while there are no tokens."""
        if self.is_open and not is_loopback(host):
            raise UserError(
                f"--host: {host!r} can be reached from elsewhere, and whoever reaches the API may replan; give a "
                "--token-file (lines `viewer:TOKEN` and `operator:TOKEN`), or leave the host at 127.0.0.1"
            )


OPEN = Access()
"""No tokens: for loopback."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it; a name other than localhost may be anything."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Gate:
    """Lets in who may ask; stands before every route, so that what is not there cannot be told from what is."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not self._access.is_open and scope["path"] not in OPEN_PATHS:
            role = self._access.role_of(Headers(scope=scope).get("authorization"))
            if role is None:
                app = problem(Kind.UNAUTHENTICATED, NEEDED, {"WWW-Authenticate": 'Bearer realm="nereus"'})
            elif role is not Role.OPERATOR and scope["method"] not in READING:
                app = problem(Kind.FORBIDDEN, f"the token's role is {role.value}; a {scope['method']} needs an operator's")
        await app(scope, receive, send)
