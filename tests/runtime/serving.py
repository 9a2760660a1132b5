"""What a loop was released on, compared with what the world holds; and what was told of its transitions."""

from __future__ import annotations

from nereus.control.effects import Interrupted, TransitionRecord
from nereus.control.report import Release
from nereus.emu.unit import Emu
from tests.runtime.loop import Loop


def emus_of(release: Release) -> list[Emu]:
    return [emu for emus in release.emus.values() for emu in emus]


def records(loop: Loop) -> list[TransitionRecord]:
    return [news for news in loop.news if isinstance(news, TransitionRecord)]


def interruptions(loop: Loop) -> list[Interrupted]:
    return [news for news in loop.news if isinstance(news, Interrupted)]


def check_serving(loop: Loop, release: Release | None) -> None:
    """The released units are those that are bound, they are all there is, they hold the state, and the plan names them."""
    assert release is not None
    world, emus = loop.world, emus_of(release)
    assert set(world.bound) == set(emus) == set(loop.state.bound)
    assert world.units() == {(endpoint, emu.unit) for emu in emus for endpoint in emu.endpoints}
    assert world.wrong(emus) == []
    for stage, plan in release.plan.stages.items():
        held = release.emus[stage]
        assert [emu.layout for emu in held] == [plan.layout] * plan.dp
        assert [int(e[1:].partition(".")[0]) for emu in held for e in emu.endpoints] == list(plan.devices)
