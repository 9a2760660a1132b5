"""Where measured data lies: tests that read it are skipped on a machine that has none.

Write `--data=DIR` with the equals sign: pytest takes a separate DIR for a test path before it reads this file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

DEFAULT = Path(__file__).parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--data", metavar="DIR", type=Path, default=DEFAULT, help="folder of measured data; default ../shared/data"
    )


@pytest.fixture(scope="session")
def data_dir(request: pytest.FixtureRequest) -> Path:
    """The folder of measured data; skips the test where there is none."""
    folder: Path = request.config.getoption("--data")
    if not folder.is_dir():
        pytest.skip(f"no measured data in {folder}; --data=DIR names the folder")
    return folder
