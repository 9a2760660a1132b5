"""A served API per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.news import STORY
from tests.api.served import Api, FakeController, served


@pytest.fixture
def api() -> Iterator[Api]:
    """The API of a job with a story behind it."""
    with served(FakeController(STORY)) as found:
        yield found


@pytest.fixture
def young() -> Iterator[Api]:
    """The API of a job that has not started yet."""
    with served(FakeController()) as found:
        yield found
