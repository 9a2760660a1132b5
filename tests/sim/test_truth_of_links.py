"""Links that an outline declares are those of the simulated world as well, not only of the plans that are made for it."""

from __future__ import annotations

import pytest

from nereus.sim.truth import Truth
from nereus.spec.hardware import ACCELERATORS, LinkClass
from nereus.spec.outline import Outline
from tests.sim.tiny import inputs


def truth(**nodes: int) -> Truth:
    scenario = inputs(((0.0, 4), (100.0, 4))).scenario()
    (group,) = scenario.outline.nodes
    outline: Outline = scenario.outline.model_copy(update={"nodes": (group.model_copy(update=nodes),)})
    return Truth(outline, scenario.models, seed=3)


@pytest.mark.parametrize(("field", "link"), [("node_bytes_s", LinkClass.NODE), ("network_bytes_s", LinkClass.NETWORK)])
def test_link_of_half_the_rate_moves_state_in_twice_the_time(field: str, link: LinkClass) -> None:
    (group,) = truth().outline.nodes
    declared = round(getattr(ACCELERATORS[group.kind], field))
    whole, half = (truth(**{field: rate}).move_seconds(1e12, link) for rate in (declared, declared // 2))
    assert whole == truth().move_seconds(1e12, link)
    assert half == pytest.approx(2 * whole, rel=1e-3)
