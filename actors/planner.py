"""The planner actor: runs searches in a process of its own on the head node, so that neither loop nor head waits for one."""

from __future__ import annotations

import gc
import time

from nereus.control.events import PlanReady
from nereus.policy.proposal import propose
from nereus.policy.snapshot import Snapshot


class Planner:
    """Answers one request after the other."""

    def __init__(self) -> None:
        # What is imported stays: else each full collection looks through it, 0.1 s in the middle of a plan.
        gc.freeze()

    def propose(self, cycle: int, snapshot: Snapshot, top: int) -> PlanReady:
        """The best proposals on a snapshot, and how long they took."""
        began = time.perf_counter()
        proposals = propose(snapshot, top)
        return PlanReady(
            cycle=cycle,
            proposals=proposals,
            current_l_step_s=snapshot.l_step_s(),
            seconds=time.perf_counter() - began,
        )
