"""The Driver: journals an event, lets the core step, starts the effects. Synchronous, and it never blocks.

    post(event) -> journal -> step -> effects -> ports -> ... -> post(event)

The head's loop and a simulator's heap call it alike. It is called from one thread.
"""

from __future__ import annotations

from collections.abc import Callable

from nereus.control.core import step
from nereus.control.effects import (
    AbortOps,
    BindUnits,
    Effect,
    InstallPrograms,
    News,
    Publish,
    QuiesceUnits,
    ReleaseBoundary,
    RequestPlan,
    RestoreState,
    RetireEndpoints,
    RunOp,
    SaveState,
    SealState,
    SeedUnits,
    SpawnDevices,
    StopJob,
    TakeDigests,
)
from nereus.control.events import BoundaryReached, Event
from nereus.control.state import JobState
from nereus.runtime.ports import JournalPort, Ports


class Driver:
    """One job's decisions, connected to the world."""

    def __init__(self, state: JobState, ports: Ports, journal: JournalPort, clock: Callable[[], float]) -> None:
        self.state = state
        self.news: list[News] = []
        """What happened, for whoever watches: reports, decisions, transitions."""
        self._ports, self._journal, self._clock = ports, journal, clock

    def post(self, event: Event) -> None:
        """Take one event in and start what it leads to."""
        now_s = self._clock()
        seq = self._journal.append(now_s, event)
        effects = self._step(event, now_s)
        self._journal.acted(seq, effects)
        self.start(effects)

    def start(self, effects: tuple[Effect, ...]) -> None:
        """Start effects; what they lead to is posted later."""
        for effect in effects:
            self._start(effect)

    def recover(self) -> None:
        """Bring the state back from the journal after a restart, without starting anything again."""
        for entry in self._journal.entries():
            self._step(entry.event, entry.at_s)

    def _step(self, event: Event, now_s: float) -> tuple[Effect, ...]:
        """Let the core step, and keep the news. A step that is reported again after a restart is no news."""
        completed = self.state.step
        self.state, effects = step(self.state, event, now_s)
        if isinstance(event, BoundaryReached) and self.state.step > completed:
            self.news.append(event.report)
        self.news.extend(effect.news for effect in effects if isinstance(effect, Publish))
        return effects

    def _start(self, effect: Effect) -> None:
        endpoints, job, checkpoints = self._ports.endpoints, self._ports.job, self._ports.checkpoints
        match effect:
            case SpawnDevices():
                job.spawn(effect.devices)
            case RetireEndpoints():
                job.retire(effect.endpoints)
            case SeedUnits():
                job.seed(effect.emus)
            case QuiesceUnits():
                job.quiesce(effect.epoch, effect.emus, effect.deadline_s)
            case InstallPrograms():
                endpoints.install(effect.programs)
            case RunOp():
                endpoints.run(effect.op)
            case AbortOps():
                endpoints.abort(effect.epoch, effect.endpoints)
            case TakeDigests():
                endpoints.digest(effect.tag, effect.emus)
            case BindUnits():
                endpoints.bind(effect.epoch, effect.emus, effect.endpoints, effect.keep)
            case SaveState():
                checkpoints.save(effect.tag, effect.emus, effect.endpoints)
            case SealState():
                checkpoints.seal(effect.tag, effect.step, effect.written, effect.digests)
            case RestoreState():
                checkpoints.restore(effect.epoch, effect.folder, effect.emus)
            case RequestPlan():
                self._ports.planner.propose(effect.cycle, effect.snapshot, effect.top)
            case ReleaseBoundary():
                job.release(effect.release)
            case StopJob():
                job.stop(effect.reason)
            case Publish():
                pass
