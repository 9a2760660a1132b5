"""The file of the API's tokens: who may look, and who may act. Read by the server, and by the commands that ask it.

    # one token a line, the role before it
    viewer:2f1c0d...
    operator:9ab37e...

Standard library only, since a command that asks has to start fast. No message ever shows a token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nereus.errors import UserError

MIN_CHARACTERS = 16
"""Characters of a token: fewer can be guessed over a network. `openssl rand -hex 32` makes 64."""

ALLOWED = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""What the header `Authorization: Bearer` can carry (RFC 6750)."""


class Role(StrEnum):
    """What a token is good for."""

    VIEWER = "viewer"
    """Looking: GET."""
    OPERATOR = "operator"
    """Looking and acting: replans and commands."""


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file."""

    role: Role
    secret: str

    def __repr__(self) -> str:
        """Without the secret: it must not get into a log."""
        return f"Token({self.role.value})"


def read_tokens(path: Path) -> tuple[Token, ...]:
    """All tokens, in the order of the file. Raises UserError where it cannot be read, is empty, or a line is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"token file {path}: {reason}; give a file of lines `viewer:TOKEN` and `operator:TOKEN`") from error
    tokens = tuple(
        _token(line.strip(), f"token file {path}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    if not tokens:
        raise UserError(f"token file {path}: it has no token; write a line `operator:TOKEN`")
    if len({token.secret for token in tokens}) < len(tokens):
        raise UserError(f"token file {path}: one token is there twice; give each line its own (`openssl rand -hex 32`)")
    return tokens


def _token(line: str, where: str) -> Token:
    role, separator, secret = line.partition(":")
    if not separator or role not in [known.value for known in Role]:
        shown = repr(role) if separator else "none"
        raise UserError(f"{where}: the role is {shown}; write `viewer:TOKEN` or `operator:TOKEN`")
    if len(secret) < MIN_CHARACTERS:
        raise UserError(
            f"{where}: the token has {len(secret)} characters; at least {MIN_CHARACTERS} are needed (`openssl rand -hex 32`)"
        )
    if not ALLOWED.fullmatch(secret):
        raise UserError(f"{where}: the token has characters that a header cannot carry; take letters, digits and ._~+/=-")
    return Token(Role(role), secret)


def strongest(tokens: tuple[Token, ...]) -> Token:
    """The token that may do most: what a command sends that has a whole file."""
    return max(tokens, key=lambda token: token.role is Role.OPERATOR)
