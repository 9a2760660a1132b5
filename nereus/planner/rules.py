"""What a framework cannot run, as data: rules that every option keeps, and settings that several holders take from one key.

    priced options --Rule--> those that the framework runs --Shared--> tables whose holders agree --> one search each

A plan is searched under the rules, not repaired afterwards: so it is the fastest that the framework can run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nereus.cost.execution import Offload
from nereus.planner.accelerators import Pricer
from nereus.planner.options import Option

Tables: TypeAlias = tuple[tuple[Option, ...], ...]
"""The options of every holder, in the workflow's order."""

Rows: TypeAlias = tuple[tuple[int, ...], ...]
"""Places in the tables: those of every holder that may be chosen together."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that holds for every option that runs."""

    sentence: str
    """What holds."""
    allows: Callable[[Option, Pricer], bool]
    holders: frozenset[str] | None = None
    """Whom it is about; None: all."""

    def forbids(self, option: Option, pricer: Pricer) -> bool:
        """Whether an option breaks it."""
        return (self.holders is None or option.holder in self.holders) and not self.allows(option, pricer)


@dataclass(frozen=True, slots=True)
class Shared:
    """A setting that several holders take from one key, so that they agree in it."""

    sentence: str
    setting: Callable[[Option], Hashable]
    holders: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules of a framework; without any, everything runs."""

    each: tuple[Rule, ...] = ()
    shared: tuple[Shared, ...] = ()

    def allow(self, option: Option, pricer: Pricer) -> bool:
        """Whether an option keeps every rule."""
        return not any(rule.forbids(option, pricer) for rule in self.each)

    def broken(self, options: Mapping[str, Option], pricer: Pricer) -> tuple[str, ...]:
        """What a plan breaks: each rule with the holders that do."""
        found = [(rule.sentence, [h for h, o in options.items() if rule.forbids(o, pricer)]) for rule in self.each]
        for shared in self.shared:
            bound = [holder for holder in options if holder in shared.holders]
            if len({shared.setting(options[holder]) for holder in bound}) > 1:
                found.append((shared.sentence, bound))
        return tuple(f"{sentence} ({', '.join(holders)})" for sentence, holders in found if holders)

    def in_the_way(self, table: Sequence[Option], pricer: Pricer) -> tuple[str, ...]:
        """The rules that together leave nothing of a table, up to the one that takes the last option."""
        left, named = list(table), []
        for rule in self.each:
            kept = [option for option in left if not rule.forbids(option, pricer)]
            if len(kept) < len(left):
                named.append(rule.sentence)
            left = kept
            if not left:
                return tuple(named)
        return ()

    def agreements(self, tables: Tables) -> Iterator[Rows]:
        """Every way to settle the shared settings in which each holder is left an option; all rows where none is shared."""
        yield from _agree(tables, tuple(tuple(range(len(table))) for table in tables), self.shared)


FREE = Rules()
"""Everything runs."""


def _holds_experts(option: Option, pricer: Pricer) -> bool:
    return option.run.ep == 1


def _stays_on_devices(option: Option, pricer: Pricer) -> bool:
    return option.run.offload is Offload.NONE


NOT_YET = (
    Rule("neither exports nor jobs that adapt have expert parallelism yet", _holds_experts),
    Rule("neither exports nor jobs that adapt offload to hosts yet", _stays_on_devices),
)
"""What only plans to look at may have: no framework's keys of it are written, and no state is moved in it."""


def _agree(tables: Tables, rows: Rows, shared: Sequence[Shared]) -> Iterator[Rows]:
    if not shared:
        yield rows
        return
    first, rest = shared[0], shared[1:]
    groups = {at: _by_setting(table, rows[at], first) for at, table in enumerate(tables) if table[0].holder in first.holders}
    common = [value for value in next(iter(groups.values()), {}) if all(value in group for group in groups.values())]
    for value in common:
        narrowed = tuple(groups[at][value] if at in groups else rows[at] for at in range(len(tables)))
        yield from _agree(tables, narrowed, rest)
    if not groups:
        yield from _agree(tables, rows, rest)


def _by_setting(table: Sequence[Option], rows: Sequence[int], shared: Shared) -> dict[Hashable, tuple[int, ...]]:
    found: dict[Hashable, tuple[int, ...]] = {}
    for row in rows:
        value = shared.setting(table[row])
        found[value] = (*found.get(value, ()), row)
    return found
