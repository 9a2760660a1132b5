"""Pins in the search: the options that agree with pinned devices, the devices of a placement, and what pins cost.

A pinned holder has its devices before anything is placed; a placement says how many devices of a node host which holders,
so those with a pinned one among them are its own and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from nereus.planner.explain import Reason, Why
from nereus.planner.placement import Placement
from nereus.planner.problem import Holder, Node, Pool
from nereus.spec.outline import Outline


def can_lie_on(pool: Pool, devices: Sequence[int], kind: int, quantum: int) -> bool:
    """Whether EMUs of a kind, of which each node has a multiple of `quantum` devices, can lie on these devices."""
    at = {device: (number, node.kind) for number, node in enumerate(pool.nodes) for device in node.devices}
    if not all(device in at and at[device][1] == kind for device in devices):
        return False
    return all(count % quantum == 0 for count in Counter(at[device][0] for device in devices).values())


def devices_of(pool: Pool, holders: Sequence[Holder], placement: Placement) -> Iterator[tuple[Node, int, tuple[int, ...]]]:
    """(node, pattern, devices) of a placement; a pattern is a bit mask of holders."""
    pinned: Counter[int] = Counter()
    for at, holder in enumerate(holders):
        for device in holder.devices or ():
            pinned[device] += 1 << at
    settled = sum(1 << at for at, holder in enumerate(holders) if holder.devices is not None)
    for node, state in zip(pool.nodes, placement, strict=True):
        free: dict[int, list[int]] = {}
        for device in node.devices:
            free.setdefault(pinned[device], []).append(device)
        for pattern, count in sorted(state, key=lambda hosts: not hosts[0]):  # idle devices last
            own = free[pattern & settled]
            free[pattern & settled] = own[count:]
            yield node, pattern, tuple(own[:count])


def reasons_of_pins(outline: Outline, seconds: float, best_of: Callable[[Outline], float | None]) -> Iterator[Reason]:
    """What each pin costs: the best step without it, by `best_of` an outline, against `seconds` with it."""
    for holder, pin in outline.pins.items():
        others = {name: other for name, other in outline.pins.items() if name != holder}
        free = best_of(outline.model_copy(update={"pins": others}))
        saved = 0.0 if free is None else seconds - free
        said = f"{holder} is pinned to {pin}"
        if free is not None and saved > 0:
            said += f"; without that a step would take {free:.4g} s, {saved:.3g} s less"
        else:
            said += "; without that no plan is faster"
        yield Reason(holder, -1, Why.PINNED, max(0.0, saved), said)
