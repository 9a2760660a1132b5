"""Asks the API of a running job; standard library only, so that a command starts fast.

Every failure is a UserError that names the URL: the job, its API or the URL is what a person can look at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from nereus.errors import UserError
from nereus.spec.tokens import read_tokens, strongest

TIMEOUT_S = 15.0
"""Seconds for one answer: the API itself waits up to 10 for a controller that restarts."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: Any
    """The JSON."""

    @property
    def is_ok(self) -> bool:
        return self.status < 400

    @property
    def detail(self) -> str:
        """Of a problem: what went wrong."""
        return str(self.body.get("detail", self.body))


def connect(url: str, token_file: Path | None = None, job: str | None = None) -> Client:
    """The API at `url`, about `job`, with the strongest token of a file. Raises UserError for a URL or file that is none."""
    return Client(url, None if token_file is None else strongest(read_tokens(token_file)).secret, job)


class Client:
    """One API, asked about one job. `url` is its root; without `job` it is about the only one that is there."""

    def __init__(self, url: str, token: str | None = None, job: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UserError(f"--url: {url!r} is no URL; give http://HOST:PORT")
        self.url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.job = job
        self._opener = build_opener(ProxyHandler({}))
        """A proxy would look for its own loopback."""

    def get(self, path: str) -> Answer:
        """Ask; a problem is an answer too."""
        return self._ask(Request(self._at(path), headers=self._headers))

    def post(self, path: str, body: dict[str, Any], key: str) -> Answer:
        """Ask for something once."""
        headers = {**self._headers, "Content-Type": "application/json", "Idempotency-Key": key}
        return self._ask(Request(self._at(path), json.dumps(body).encode(), headers, method="POST"))

    def all(self, path: str) -> list[Any]:
        """The items of all pages. Raises UserError on a problem."""
        items: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            page = self.wanted(f"{path}?limit=200" + (f"&cursor={cursor}" if cursor else ""))
            items += page["items"]
            cursor = page["next_cursor"]
        return items

    def wanted(self, path: str) -> Any:
        """An answer's body. Raises UserError on a problem."""
        answer = self.get(path)
        if not answer.is_ok:
            raise UserError(f"{self.url}{path}: {answer.detail}")
        return answer.body

    def _at(self, path: str) -> str:
        """A path's URL, with the job that it is about."""
        query = "" if self.job is None else f"{'&' if '?' in path else '?'}{urlencode({'job': self.job})}"
        return self.url + path + query

    def _ask(self, request: Request) -> Answer:
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                return self._answer(response.status, response.read())
        except HTTPError as error:
            with error:
                return self._answer(error.code, error.read())
        except HTTPException as error:
            raise self._foreign("no HTTP") from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise UserError(
                f"--url: nothing answers at {self.url} ({reason}); a job serves its API only while it runs, "
                "and `nereus run` prints where"
            ) from error

    def _answer(self, status: int, text: bytes) -> Answer:
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise self._foreign(f"status {status}, no JSON object")
        return Answer(status, body)

    def _foreign(self, found: str) -> UserError:
        return UserError(f"--url: what answers at {self.url} is not the API of Nereus ({found}); check the port")
