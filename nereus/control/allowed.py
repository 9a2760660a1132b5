"""Which phase may follow which, and why: the table that the core checks each change against."""

from __future__ import annotations

from collections.abc import Mapping

from nereus.control.phases import (
    Admitted,
    Idle,
    Joining,
    Paused,
    Phase,
    Planning,
    Restoring,
    Saving,
    Settling,
    Starting,
    Steady,
    Stopped,
    Transitioning,
    Waiting,
)

ANEW = "no intact copy is left, and there is a checkpoint: workers start anew"
"""Why the phases that units can be lost in go over to Waiting."""

ALLOWED: Mapping[type[Phase], Mapping[type[Phase], str]] = {
    Idle: {Starting: "the job has started", Waiting: "it goes on from the checkpoint of another run"},
    Starting: {Steady: "all units are bound", Stopped: "a worker did not start"},
    Steady: {
        Planning: "a signal crossed, or an operator asked",
        Joining: "a scripted transition needs devices",
        Transitioning: "a scripted transition is due",
        Admitted: "an operator goes back to the plan before",
        Paused: "an operator holds the loop",
        Saving: "a checkpoint is due",
        Waiting: ANEW,
        Stopped: "the last copy of a model-stage is gone",
    },
    Planning: {
        Joining: "a scripted transition needs devices",
        Planning: "a newer snapshot replaces the request",
        Admitted: "a proposal was admitted",
        Transitioning: "a proposal was admitted while the loop waited",
        Steady: "no proposal was admitted, or an operator aborted",
        Paused: "the answer is there, and an operator holds the loop",
        Waiting: "no plan fits, and devices may come; or workers start anew",
        Saving: "no transition leads on: the state is saved first",
        Restoring: "a plan was admitted, and no unit stands",
        Stopped: "the last copy of a model-stage is gone",
    },
    Admitted: {
        Joining: "a scripted transition needs devices",
        Transitioning: "the boundary was reached and the snapshot still holds",
        Steady: "the pool or the units have changed since the decision, or an operator aborted",
        Paused: "an operator holds the loop",
        Planning: "the pool or the units have changed, and a signal crossed",
        Restoring: "the loop waits, and no unit stands",
        Waiting: ANEW,
        Stopped: "the last copy of a model-stage is gone",
    },
    Joining: {
        Transitioning: "all devices are ready",
        Planning: "units are gone",
        Steady: "an operator aborted",
        Paused: "an operator aborted, and holds the loop",
        Waiting: ANEW,
        Stopped: "a worker did not start, or the last copy of a model-stage is gone",
    },
    Transitioning: {
        Steady: "committed, or rolled back",
        Paused: "committed or rolled back, and an operator holds the loop",
        Planning: "whole units stand again, and a plan for them is wanted",
        Settling: "an operation failed, a device was lost, or an operator aborted",
        Waiting: ANEW,
        Stopped: "the state was damaged before anything moved, or no intact copy is left",
    },
    Settling: {
        Transitioning: "all is quiet: back to whole units",
        Waiting: ANEW,
        Stopped: "no intact copy is left, or it failed too often",
    },
    Paused: {
        Steady: "let go",
        Planning: "let go and a signal has crossed, units are gone, or an operator asked",
        Joining: "let go, and a scripted transition needs devices",
        Transitioning: "let go, and what was admitted or scripted is due",
        Saving: "let go, and a checkpoint is due",
        Waiting: ANEW,
        Stopped: "the last copy of a model-stage is gone",
    },
    Waiting: {
        Planning: "a device is ready, or units are gone",
        Restoring: "all workers are there, and the plan in force is kept",
        Steady: "no device is on its way any more",
        Paused: "no device is on its way any more, and an operator holds the loop",
        Stopped: "no device is on its way any more, or the last copy of a model-stage is gone",
    },
    Saving: {
        Steady: "the checkpoint is whole, or failed, and the boundary goes on",
        Planning: "the boundary goes on with a replan, or a plan to start anew on is wanted",
        Paused: "an operator holds the loop",
        Joining: "the boundary goes on with a scripted transition",
        Transitioning: "the boundary goes on with a scripted transition",
        Waiting: "no plan fits, and devices may come; or workers start anew",
        Stopped: "the last copy of a model-stage is gone, or no plan fits",
    },
    Restoring: {
        Transitioning: "all units are read: they are proved and bound",
        Waiting: "a process died: workers start anew",
        Stopped: "the checkpoint cannot be read, or no device is left",
    },
    Stopped: {},
}
"""Which phase may follow which, and why. A change that is not here is a bug, and raises."""
