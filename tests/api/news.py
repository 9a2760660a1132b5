"""News by hand: builders with figures that are easy to add up, and a whole small story."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nereus.control.announced import JobDescribed, Replanned
from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import CanaryRead, Decision, DevicesChanged, News, Started, TransitionRecord
from nereus.control.report import StepReport
from nereus.emu.plan import Plan
from nereus.policy.admission import Code, Verdict
from nereus.policy.proposal import Proposal
from tests.builders import make_plan

MIB = 2**20


def plan(epoch: int, training: str = "tp2 dp1", generation: str = "tp1 dp2") -> Plan:
    """Generation on the first devices, training on the first devices too."""
    stages = {"actor_generation": generation, "actor_training": training}
    return Plan(epoch, {name: make_plan(text, stage=name) for name, text in stages.items()})


def described(num_steps: int | None = 10) -> JobDescribed:
    return JobDescribed(algorithm="grpo", mode="sync", num_steps=num_steps, num_parameters=420_000, usable_bytes=20.0 * MIB)


def started() -> Started:
    return Started(plan=plan(0))


def replanned(step: int, *signals: str, current_s: float = 2.0, cycle: int = 1) -> Replanned:
    """Three proposals after a quarter of a second."""
    return Replanned(step=step, cycle=cycle, signals=signals, num_proposals=3, current_l_step_s=current_s, seconds=0.25)


def canary(epoch: int, realised_s: float) -> CanaryRead:
    """It was to save half a second per step."""
    return CanaryRead(step=4, epoch=epoch, predicted_s=0.5, realised_s=realised_s, returns=realised_s <= 0)


def pool(step: int, ready: Mapping[int, str], leaving: Mapping[int, int] | None = None) -> DevicesChanged:
    return DevicesChanged(step=step, ready=ready, leaving=leaving or {})


def saved(step: int, folder: str | None = "/checkpoints/000001-step-2", error: str = "") -> Saved:
    """A checkpoint of 4 MiB that the loop stood half a second for."""
    return Saved(step=step, reason="one is due", folder=folder, num_bytes=4 * MIB, seconds=0.5, error=error)


def restored(step: int, repeated_steps: int, epoch: int = 3) -> Restored:
    """A return that read 6 MiB in a second and a half."""
    return Restored(
        step=step,
        epoch=epoch,
        folder="/checkpoints/000001-step-2",
        reason="no intact copy is left",
        repeated_steps=repeated_steps,
        num_bytes=6 * MIB,
        seconds=1.5,
        plan=plan(epoch, "tp1 dp2"),
    )


def step(number: int, **changes: Any) -> StepReport:
    """A step of 2 s: 1 s of generation, 0.75 s of training, 0.25 s of weight sync; 4 samples."""
    figures: dict[str, Any] = {
        "step": number,
        "reward": 0.5,
        "response_tokens_mean": 12.5,
        "response_tokens_max": 20,
        "num_samples": 4,
        "loss": 0.125,
        "kl": 0.25,
        "grad_norm": 1.5,
        "updates": 2 * number,
        "stage_s": {"weight_sync": 0.25, "actor_generation": 1.0, "actor_training": 0.75},
        "step_s": 2.0,
        "late_s": 0.5,
        "declared_s": 4.0,
        "peak_bytes": {"d0.0": 3 * MIB, "d1.0": 5 * MIB},
    }
    return StepReport(**{**figures, **changes})


def decision(
    code: Code = Code.REJECTED_PAYBACK,
    *,
    cycle: int = 1,
    delta_s: float = 0.5,
    l_tran_s: float = 2.0,
    command: str | None = None,
) -> Decision:
    """Training would go to tp1 dp2: 1.5 s a step; moving there takes 2 s, and pays in 4 steps."""
    return Decision(
        step=1,
        cycle=cycle,
        triggers=("an operator asked" if command else "the pool went from 2 to 3 devices",),
        command=command,
        target={"actor_training": "tp1 dp2 on 0-1"},
        verdict=Verdict(code, delta_s, l_tran_s, 3.0, 0.5, f"the reason is {code.value}"),
        proposal=Proposal(
            stages=plan(0, training="tp1 dp2").stages,
            l_step_s=1.5,
            peak_bytes=4 * MIB,
            l_tran_s=l_tran_s,
            transition_peak_bytes=6 * MIB,
            primitives={"Split": 1},
            bytes_moved=1000,
            infeasible=None,
        ),
    )


def transition(epoch: int = 1, *, predicted_s: float = 1.0, joined: tuple[int, ...] = ()) -> TransitionRecord:
    """Moved in 1.5 s, proved in 0.25 s; 4096 bytes."""
    return TransitionRecord(
        step=1,
        epoch=epoch,
        trigger="the pool went from 2 to 3 devices",
        primitives={"Split": 1, "Merge": 2},
        joined=joined,
        left=(),
        plan=plan(epoch, training="tp1 dp2"),
        outcome={
            "setup_s": 0.5,
            "bytes_moved": 4096,
            "groups_made": 3,
            "groups_reused": 1,
            "streams": 0,
            "peak_bytes": 7 * MIB,
            "seconds": 1.5,
            "quiesce_s": 0.5,
            "digest_s": 0.25,
            "l_tran_predicted_s": predicted_s,
            "digest_equal": True,
            "ops": [{"bytes": 1024, "num_nodes": 1}, {"bytes": 3072, "num_nodes": 2}],
        },
    )


STORY: tuple[News, ...] = (
    described(),
    pool(0, {0: "d0.0", 1: "d1.0"}),
    started(),
    step(1),
    pool(1, {0: "d0.0", 1: "d1.0", 2: "d2.0"}, {0: 4}),
    replanned(1, "pool", "length"),
    decision(Code.INFEASIBLE_MEMORY),
    decision(Code.REJECTED_PAYBACK),
    decision(Code.ADMITTED),
    transition(1),
    step(2, reward=0.75, stage_s={"weight_sync": 0.5, "actor_generation": 2.0}, step_s=3.0),
)
"""A pool that grows while device 0 gets notice, three candidates, one transition, two steps."""
