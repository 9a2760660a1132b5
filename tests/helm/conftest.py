"""Both helms: a chart that only one of them renders is broken for half of those who install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.programs import program


@pytest.fixture(scope="session", params=["helm3", "helm4"])
def helm(request: pytest.FixtureRequest) -> Path:
    """One helm after the other."""
    return program(request.param)


@pytest.fixture(scope="session")
def newest() -> Path:
    """One helm, where the other one would say the same: `test_both_helms_render_the_same` holds that."""
    return program("helm4")
