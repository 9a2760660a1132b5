"""One fleet of eight processes for the whole suite: starting them is most of its time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders import ENDPOINT_OF
from tests.transport.fleet import Fleet


@pytest.fixture(scope="session")
def shared_fleet() -> Iterator[Fleet]:
    fleet = Fleet(ENDPOINT_OF[device] for device in range(8))
    yield fleet
    fleet.close()


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Iterator[Fleet]:
    """Eight endpoints without units and groups; afterwards nothing may be left in their ledgers."""
    yield shared_fleet
    shared_fleet.settle()
    shared_fleet.bind(())
    for used, held in shared_fleet.call_all(shared_fleet.endpoints, "memory_use").values():
        assert sum(used.values()) == held == 0
