"""A framework that plans are written for: which outlines and options it can run, and a plan in its own words.

outline -> forbids, habits -> search under `rules` -> PlannedStep -> lines to paste behind its launcher
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import floor

from nereus.planner.posed import PlannedStep
from nereus.planner.rules import Rules
from nereus.spec.outline import Outline
from nereus.spec.stages import ACTOR_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework at one version."""

    name: str
    version: str
    """The release, or the commit, that `keys` were held against."""
    source: str
    """The file of it that declares them."""
    keys: frozenset[str]
    """All that an export may set; a test holds every export to them."""
    rules: Rules
    """What its options keep."""
    forbids: Callable[[Outline], str]
    """Why it cannot run an outline whatever the plan; empty where it can."""
    pairs: Callable[[Outline, PlannedStep], Iterator[tuple[str, object]]]
    """Key and value of all that a plan decides."""
    line: Callable[[str, object], str]
    """A key and its value as they are pasted."""
    habits: Mapping[str, object] = field(default_factory=dict)
    """Fields of the outline that the framework decides."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def run_by(self, outline: Outline) -> Outline:
        """An outline as this framework would run it."""
        return outline.model_copy(update=dict(self.habits))

    def overrides(self, outline: Outline, plan: PlannedStep) -> tuple[str, ...]:
        """A line for every key that the plan decides."""
        return tuple(self.line(key, value) for key, value in self.pairs(outline, plan))


def assignment(key: str, value: object) -> str:
    """An override of Hydra and of OmegaConf."""
    return f"{key}={value}"


def num_nodes(outline: Outline) -> int:
    """Of a pool of equal nodes."""
    return sum(group.count for group in outline.nodes)


def engine_share(outline: Outline, plan: PlannedStep) -> float:
    """Share of a device's memory that a rollout engine may fill: what the others, idle, leave of it, down to 0.01.

    The engine gives it back while it sleeps.
    """
    idle = sum(option.resident_bytes for holder, option in plan.options.items() if holder != ACTOR_GENERATION)
    return floor((1 - outline.headroom - idle / outline.nodes[0].memory_bytes) * 100) / 100
