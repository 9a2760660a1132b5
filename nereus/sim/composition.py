"""The seconds of a step from those of its model-stages, as a framework would run it: each in the workflow's order.

    task starts when what it waits for has ended, and its devices are free; weight syncs come after the boundary
    step = the last end;  asynchronously the tasks are those between two weight syncs

No search for a better order: that is what separates the world from the planner's overlap graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from nereus.spec.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Task:
    """A model-stage or a weight sync, and the earlier tasks that it has to wait for, by place."""

    name: str
    waits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Composition:
    """The tasks of a step under one plan."""

    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, workflow: Workflow, devices: Mapping[str, Set[int]]) -> Composition:
        """`devices` has those of each holder."""
        used = [(stage.name, devices[stage.holder]) for stage in workflow.stages]
        before: dict[str, set[str]] = {}
        for earlier, later in workflow.dependencies():
            before.setdefault(later, set()).add(earlier)
        tasks = []
        for place, (name, own) in enumerate(used):
            waits = (i for i, (other, its) in enumerate(used[:place]) if other in before.get(name, ()) or own & its)
            tasks.append(Task(name, tuple(waits)))
        num_stages = len(tasks)
        syncs = [(sync.name, devices[sync.source] | devices[sync.target]) for sync in workflow.syncs]
        for place, (name, own) in enumerate(syncs):
            shared = (num_stages + i for i, (_, its) in enumerate(syncs[:place]) if own & its)
            tasks.append(Task(name, (*range(num_stages), *shared)))
        return cls(tuple(_reduced(tasks)))

    def seconds(self, tasks_s: Sequence[float]) -> float:
        """Of the step, from the seconds of each task."""
        ends: list[float] = []
        for task, own in zip(self.tasks, tasks_s, strict=True):
            start = 0.0
            for place in task.waits:
                start = max(start, ends[place])
            ends.append(start + own)
        return max(ends)


def _reduced(tasks: Sequence[Task]) -> Iterator[Task]:
    """Each task without the waits that others of its waits imply."""
    implied: list[frozenset[int]] = []
    for task in tasks:
        implied.append(frozenset(task.waits).union(*(implied[place] for place in task.waits)))
        further = frozenset[int]().union(*(implied[place] for place in task.waits))
        yield Task(task.name, tuple(place for place in task.waits if place not in further))
