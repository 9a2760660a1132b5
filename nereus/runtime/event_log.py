"""What happened in a run as plain values: a line of events.jsonl for each piece of news."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nereus.control.announced import JobDescribed, Replanned
from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import (
    Answered,
    CanaryRead,
    Decision,
    DevicesChanged,
    Interrupted,
    News,
    Started,
    Waited,
)
from nereus.control.report import StepReport
from nereus.runtime.projection import number
from nereus.runtime.summary import plan_dict


def event_dict(event: News) -> dict[str, Any]:
    """An event as plain values, for events.jsonl."""
    if isinstance(event, StepReport):
        return {"event": "step", **asdict(event)}
    if isinstance(event, JobDescribed):
        return {"event": "described", **asdict(event), "usable_bytes": number(event.usable_bytes)}
    if isinstance(event, Replanned):
        return {"event": "replanned", **asdict(event)}
    if isinstance(event, Started):
        return {"event": "started", "plan": plan_dict(event.plan)}
    if isinstance(event, DevicesChanged):
        ready, leaving = ({str(device): value for device, value in x.items()} for x in (event.ready, event.leaving))
        return {"event": "devices", "step": event.step, "ready": ready, "leaving": leaving}
    if isinstance(event, Decision):
        return {
            "event": "decision",
            "step": event.step,
            "cycle": event.cycle,
            "dry_run": event.is_dry_run,
            "triggers": list(event.triggers),
            "target": dict(event.target),
            "l_step_s": event.proposal.l_step_s,
            **asdict(event.verdict),
        }
    if isinstance(event, Answered):
        return {"event": "answered", **asdict(event)}
    if isinstance(event, CanaryRead):
        return {"event": "canary", **asdict(event)}
    if isinstance(event, Waited):
        return {"event": "waited", **asdict(event)}
    if isinstance(event, Saved):
        return {"event": "saved", **asdict(event)}
    if isinstance(event, Restored):
        return {"event": "restored", **asdict(event), "plan": plan_dict(event.plan)}
    if isinstance(event, Interrupted):
        return {"event": "interrupted", **asdict(event), "plan": plan_dict(event.plan)}
    return {
        "event": "transition",
        "step": event.step,
        "epoch": event.epoch,
        "trigger": event.trigger,
        "primitives": dict(event.primitives),
        "joined": list(event.joined),
        "left": list(event.left),
        "outcome": dict(event.outcome),
        "plan": plan_dict(event.plan),
    }
