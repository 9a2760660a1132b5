"""Pins of outlines: what can be settled, and how a pin that nothing agrees with is refused by its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.spec.outline import parse_outline, read_models
from tests.spec.test_outline import OUTLINE, model_file


def pinned(holder: str = "actor_training", **pin: Any) -> dict[str, Any]:
    return {**OUTLINE, "pins": {holder: pin}}


def test_pin_holds_what_is_settled_and_leaves_the_rest_free() -> None:
    outline = parse_outline(pinned(tp=2, recompute=False, devices="0-2,8"))
    assert outline.pin("actor_training").settled == {"tp": 2, "recompute": False, "devices": (0, 1, 2, 8)}
    assert outline.pin("critic_training").settled == {}


@pytest.mark.parametrize(
    ("outline", "message"),
    [
        (pinned("critic_inference", tp=2), r"pins\.critic_inference.*runs on the EMUs of critic_training"),
        (pinned("actor_trainin", tp=2), r"pins\.actor_trainin.*did you mean actor_training"),
        (pinned(tp=0), r"pins\.actor_training\.tp.*0.*at least 1"),
        (pinned(tpp=2), r"pins\.actor_training\.tpp.*did you mean"),
        (pinned("reference_inference", zero1=True), r"pins\.reference_inference\.zero1.*does not train"),
        (pinned(dp=257), r"pins\.actor_training\.dp.*257.*256 sequences"),
        (pinned(devices=[0, 0]), r"pins\.actor_training\.devices.*each once"),
        (pinned(devices="0-3,20"), r"pins\.actor_training\.devices.*20.*below"),
        (pinned(devices="14-17"), r"pins\.actor_training\.devices.*one kind"),
        (pinned(tp=4, devices="0-5"), r"pins\.actor_training\.devices.*there are 6, and tp 4 is 4"),
        (pinned(tp=2, pp=1, dp=2, ep=1, devices="0-7"), r"devices.*there are 8, and tp 2 x pp 1 x dp 2 x ep 1 is 4"),
        (pinned(offload="parameters"), r"pins\.actor_training\.offload.*none or optimizer"),
        (pinned("actor_generation", offload="optimizer"), r"pins\.actor_generation\.offload.*it must be none"),
    ],
)
def test_pin_that_cannot_be_is_refused_by_field_and_value(outline: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=f"(?s){message}"):
        parse_outline(outline)


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ({"tp": 3}, r"pins\.actor_training\.tp.*4 heads and 2 kv heads"),
        ({"pp": 3}, r"pins\.actor_training\.pp.*2 layers"),
        ({"ep": 2}, r"pins\.actor_training\.ep.*no experts; it must be 1"),
        ({"tp": 2, "pp": 1, "dp": 2, "devices": "0-7"}, r"devices.*there are 8, and tp 2 x pp 1 x dp 2 is 4"),
    ],
)
def test_pin_that_the_model_forbids_is_refused(tmp_path: Path, pin: dict[str, int], message: str) -> None:
    model_file(tmp_path, "a.json", 32)
    with pytest.raises(JobFileError, match=f"(?s){message}"):
        read_models(parse_outline(pinned(**pin)), tmp_path)
