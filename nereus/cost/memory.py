"""Peak memory of a plan, by component, from shapes alone. First cut: PLACEHOLDER."""

from __future__ import annotations

from nereus.emu.plan import Plan
from nereus.spec.job import Job


def predicted_peak_bytes(job: Job, plan: Plan) -> int:
    return 0
