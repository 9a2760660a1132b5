"""Who owns which devices when: what every order of a transition has to keep, and whether there is one (paper, section 6).

    movements of all stages + who excludes whom -> what each movement waits for -> no circle, or the stages in it

Both plans are valid, so of two exclusive model-stages the one that leaves a device always goes before the one that takes it:
ownership leaves no choice, and where these waits go in a circle no order of these movements exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from nereus.transition.movement import Movement

Exclusive = Callable[[str, str], bool]
"""Whether two model-stages may not own one device at the same time."""

Movements = Mapping[str, tuple[Movement, ...]]
Key = tuple[str, int]
"""A movement of a model-stage."""
Edges = dict[Key, set[Key]]


def edges(planned: Movements, current: Mapping[str, tuple[Emu, ...]], exclusive: Exclusive) -> Edges:
    """What each movement waits for: its own model-stage's, and what exclusive ones release for it."""
    releases: dict[EndpointId, list[Key]] = {}
    for stage, movements in planned.items():
        for index, movement in enumerate(movements):
            for endpoint in dict.fromkeys(site.endpoint for site in movement.frees):
                releases.setdefault(endpoint, []).append((stage, index))
    excluded = {(a, b) for a in planned for b in planned if a != b and exclusive(a, b)}
    after: Edges = {}
    for stage, movements in planned.items():
        owned = endpoints_of(current[stage])
        for index, movement in enumerate(movements):
            waits = after.setdefault((stage, index), {(stage, i) for i in movement.after})
            for endpoint in endpoints_of(movement.makes) - owned:
                waits |= {key for key in releases.get(endpoint, ()) if (stage, key[0]) in excluded}
    return after


def endpoints_of(emus: Iterable[Emu]) -> set[EndpointId]:
    """All endpoints of some units."""
    return {endpoint for emu in emus for endpoint in emu.endpoints}


def circle(after: Edges) -> list[Key]:
    """Movements that wait for one another in a circle, each for the next; none if there is no circle."""
    followers: dict[Key, list[Key]] = {}
    missing = {key: len(waits) for key, waits in after.items()}
    for key, waits in after.items():
        for before in waits:
            followers.setdefault(before, []).append(key)
    ready = [key for key, count in missing.items() if not count]
    while ready:
        key = ready.pop()
        del missing[key]
        for follower in followers.get(key, ()):
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if not missing:
        return []
    path = [min(missing)]
    while path[-1] not in path[:-1]:
        path.append(min(before for before in after[path[-1]] if before in missing))
    found = path[path.index(path[-1]) + 1 :]
    first = found.index(min(found))
    return [*found[first:], *found[:first]]
