"""Every order of tasks, depth first, up to a limit: the last of the second stage's means, and its proof.

Only memory leaves a choice. A task that leaves no device with more than before, or for which there is room whatever comes,
is placed as soon as it fits: no order is lost by it. Sets of placed tasks that lead nowhere are remembered. Tasks that
share neither devices that are too small nor edges are searched apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nereus.transition.ordering import peak_rule
from nereus.transition.tasks import Device, Order, Problem


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No order was found."""

    proved: bool
    """Whether all of them were looked at."""


def every_order(problem: Problem, devices: Sequence[Device], node_limit: int) -> Order | Exhausted:
    """An order in which the tasks fit, if there is one and the search comes to it."""
    order: Order = []
    for part in _parts(problem, devices):
        search = _Search(problem, devices, part, node_limit)
        if not search.run():
            return Exhausted(proved=search.nodes <= node_limit)
        node_limit -= search.nodes
        order += search.placed
    return order


def _parts(problem: Problem, devices: Sequence[Device]) -> list[list[int]]:
    """Tasks that have to be searched together."""
    root = list(range(len(problem.tasks)))

    def of(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    for index, task in enumerate(problem.tasks):
        for before in task.after:
            root[of(before)] = of(index)
    for device in devices:
        for use in device.uses[1:]:
            root[of(use.task)] = of(device.uses[0].task)
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for index in range(len(root)):
        parts[of(index)].append(index)
    return list(parts.values())


@dataclass(slots=True)
class _Search:
    """One depth-first search; `placed` is where it stands."""

    problem: Problem
    devices: Sequence[Device]
    part: list[int]
    node_limit: int
    nodes: int = 0
    placed: Order = field(default_factory=list)
    done: int = 0
    level: list[int] = field(default_factory=list)
    to_take: list[int] = field(default_factory=list)
    """What the tasks that are not placed yet will take, on each device."""
    uses: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    followers: dict[int, list[int]] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        tasks = self.problem.tasks
        self.level = [device.held for device in self.devices]
        self.to_take = [0] * len(self.devices)
        self.uses = {index: [] for index in self.part}
        for number, device in enumerate(self.devices):
            for index, takes, gives in device.uses:
                if index in self.uses:
                    self.uses[index].append((number, takes, gives))
                    self.to_take[number] += takes
        self.followers = {index: [] for index in self.part}
        for index in self.part:
            for before in tasks[index].after:
                self.followers[before].append(index)
        self.missing = {index: len(tasks[index].after) for index in self.part}
        self.ready = {index for index, count in self.missing.items() if not count}

    def run(self) -> bool:
        """Whether an order was found. Iterative: an order may have more choices than Python has frames."""
        dead: set[int] = set()
        stack: list[tuple[int, Iterator[int]]] = []
        depth = self._place_free()
        choices = self._choices()
        while len(self.placed) < len(self.part):
            index = next(choices, None)
            if index is None:
                dead.add(self.done)
                self._back_to(depth)
                if not stack:
                    return False
                depth, choices = stack.pop()
                self._take_back()
                continue
            self._put(index)
            self.nodes += 1
            if self.nodes > self.node_limit:
                return False
            kept = depth
            depth = self._place_free()
            if self.done in dead:
                self._back_to(depth)
                self._take_back()
                depth = kept
                continue
            stack.append((kept, choices))
            choices = self._choices()
        return True

    def _choices(self) -> Iterator[int]:
        tasks = self.problem.tasks
        return iter(sorted(filter(self._fits, self.ready), key=lambda index: peak_rule(index, tasks[index])))

    def _place_free(self) -> int:
        """Place what costs no order; returns how many were placed before."""
        before = len(self.placed)
        while (index := next((i for i in sorted(self.ready) if self._is_free(i)), None)) is not None:
            self._put(index)
        return before

    def _fits(self, index: int) -> bool:
        usable = self.problem.usable_bytes
        return all(not takes or self.level[n] + takes <= usable for n, takes, _ in self.uses[index])

    def _is_free(self, index: int) -> bool:
        usable = self.problem.usable_bytes
        return self._fits(index) and all(
            takes <= gives or self.level[n] + self.to_take[n] <= usable for n, takes, gives in self.uses[index]
        )

    def _put(self, index: int) -> None:
        for number, takes, gives in self.uses[index]:
            self.level[number] += takes - gives
            self.to_take[number] -= takes
        self.placed.append(index)
        self.done |= 1 << index
        self.ready.discard(index)
        for follower in self.followers[index]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self.ready.add(follower)

    def _take_back(self) -> None:
        index = self.placed.pop()
        self.done &= ~(1 << index)
        for number, takes, gives in self.uses[index]:
            self.level[number] -= takes - gives
            self.to_take[number] += takes
        for follower in self.followers[index]:
            if not self.missing[follower]:
                self.ready.discard(follower)
            self.missing[follower] += 1
        self.ready.add(index)

    def _back_to(self, depth: int) -> None:
        while len(self.placed) > depth:
            self._take_back()
