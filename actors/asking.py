"""Asks Ray's autoscaler for devices: as many as the jobs gain enough by, within the operator's bounds. The only place.

It is a request, not a grant: what comes, comes as nodes. Where no autoscaler listens, it is noted and nothing happens.
"""

from __future__ import annotations

from nereus.policy.allotting import asked_for
from nereus.policy.grants import Grants


class Asking:
    """What was asked for last, by kind of device."""

    def __init__(self, least: int, most: int | None) -> None:
        self._least, self._most = least, most
        self.latest: dict[str, int] = {}

    def ask(self, grants: Grants, resource: str) -> None:
        """Ask for what the jobs want now, if that is not what was asked for."""
        number = asked_for(grants, resource, self._least, self._most)
        if self.latest.get(resource) != number:
            self._request({**self.latest, resource: number})

    def withdraw(self) -> None:
        """Ask for nothing any more."""
        self._request({})

    def _request(self, numbers: dict[str, int]) -> None:
        """One call for all kinds: a request replaces the one before. One that fails is made again with the next look."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[{kind: 1} for kind, number in sorted(numbers.items()) for _ in range(number)])
        self.latest = numbers
