"""The nodes of a Ray cluster, as Ray tells them, and its autoscaler, which is asked for more. A NodesPort.

It is a request, not a grant: what comes, comes as nodes. Where no autoscaler listens, it is noted and nothing happens.
"""

from __future__ import annotations

from collections.abc import Mapping

from actors.cluster import devices_of
from nereus.policy.seating import Node


class RayNodes:
    """Those of the connected cluster."""

    def seen(self, resource: str) -> tuple[Node, ...]:
        """Those that are there, with what each offers of a resource."""
        return devices_of(resource)

    def request(self, numbers: Mapping[str, int]) -> None:
        """Ask for so many devices of each kind: one call for all of them, since a request replaces the one before."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[{kind: 1} for kind, number in sorted(numbers.items()) for _ in range(number)])
