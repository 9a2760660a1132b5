"""A guarded API, scraped by a real Prometheus by the configuration of docs/metrics.md."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from nereus.api.access import Access
from tests.api.news import STORY
from tests.api.served import JOB, FakeController, FakeJobs, all_served
from tests.metrics.prometheus import PROMETHEUS, Prometheus, scraping

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH: Debian's package prometheus has it")

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
VIEWER, OTHER = "viewer-token-0123456789", "other-token-0123456789"


def documented(token_file: Path) -> dict[str, Any]:
    """The one scrape of the document, with the token file of this machine."""
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (scrape,) = yaml.safe_load(text)["scrape_configs"]
    assert set(scrape) == {"job_name", "scrape_interval", "authorization", "static_configs"}
    return {**scrape, "authorization": {"credentials_file": str(token_file)}}


def until_scraped(server: Prometheus) -> list[float]:
    """Whether the first scrape was answered."""
    end = time.monotonic() + 20
    while not (up := server.instant("up", time.time())):
        assert time.monotonic() < end, "nothing was scraped"
        time.sleep(0.2)
    return up


@pytest.mark.parametrize(("token", "is_up"), [(VIEWER, 1.0), (OTHER, 0.0)])
def test_scrape_needs_a_token_of_the_file(tmp_path: Path, token: str, is_up: float) -> None:
    (tmp_path / "tokens").write_text(f"viewer:{VIEWER}\n")
    (tmp_path / "token").write_text(token)
    with (
        all_served(FakeJobs({JOB: FakeController(STORY)}), Access.read(tmp_path / "tokens")) as api,
        scraping(api.url, tmp_path / "prometheus", documented(tmp_path / "token")) as server,
    ):
        assert until_scraped(server) == [is_up]
        steps = server.instant(f'nereus_steps_total{{nereus_job="{JOB}"}}', time.time())
        assert steps == ([2.0] if is_up else [])
