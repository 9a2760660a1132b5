"""What a transition was predicted to take and what it took, operation by operation, with one second between two facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.control.effects import RunOp
from nereus.control.events import Committed, DigestsTaken, Event, Installed, OpCompleted
from nereus.rl.describe import EMULATED
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from tests.control.harness import Core
from tests.runtime.loop import choice, scripted_config

APART = {
    "step": 1,
    "stages": {
        ACTOR_GENERATION: choice(4, 1, 1, "0-3"),
        ACTOR_TRAINING: choice(1, 2, 2, "0-3"),
        REFERENCE_INFERENCE: choice(2, 1, 1, "4-5"),
    },
}
"""Two model-stages on devices 0 to 3, and one on 4 and 5; nothing is destroyed."""

SHRINKS = {"step": 1, "stages": {REFERENCE_INFERENCE: choice(1, 1, 1, "4")}}


def carried_out(*script: dict[str, object]) -> tuple[Core, dict[str, float]]:
    """A core that has gone through its script, and when each operation was asked for."""
    core, began = Core(scripted_config(*script)).start(range(6)), dict[str, float]()
    for _ in script:
        core.boundary()
        while core.pending:
            for effect in core.post(core.pending.pop(0)):
                if isinstance(effect, RunOp):
                    began[effect.op.id] = core.now_s
    return core, began


def times(core: Core, kind: type[Event]) -> list[float]:
    return [at_s for event, at_s in core.events if isinstance(event, kind)]


WORKED_S = 0.1
"""What the harness says that each member worked on an operation."""


def test_each_operation_is_told_from_when_the_first_member_took_it_up_to_the_last_answer() -> None:
    core, asked = carried_out(APART)
    (record,) = core.records
    assert [op["id"] for op in record.outcome["ops"]] == list(asked)
    first = min(asked.values())
    for op in record.outcome["ops"]:
        answers = [at_s for event, at_s in core.events if isinstance(event, OpCompleted) and event.op == op["id"]]
        assert len(answers) == len(op["endpoints"])
        assert op["start_s"] == pytest.approx(min(answers) - WORKED_S - first)
        assert op["seconds"] == pytest.approx(max(answers) - min(answers) + WORKED_S)


def test_operations_that_wait_for_nothing_are_asked_for_at_once_on_disjoint_devices() -> None:
    """Paper, section 6.1: "Ready primitives run concurrently across GPU groups and streams"."""
    core, asked = carried_out(APART)
    ops = {op["id"]: op for op in core.records[0].outcome["ops"]}
    at_once = [name for name, at_s in asked.items() if at_s == min(asked.values())]
    apart = [(a, b) for a in at_once for b in at_once if set(ops[a]["endpoints"]).isdisjoint(ops[b]["endpoints"])]
    assert apart
    assert {ops[name]["stage"] for pair in apart for name in pair} >= {ACTOR_TRAINING, REFERENCE_INFERENCE}


def test_seconds_of_a_transition_leave_both_proofs_out() -> None:
    """From the first digest's end to the last operation's, and from the second's end to the last bind."""
    core, _ = carried_out(APART)
    digests, installed, bound = times(core, DigestsTaken), times(core, Installed), times(core, Committed)
    before = max(at_s for at_s in digests if at_s < installed[-1])
    moved, after = max(times(core, OpCompleted)), max(digests)
    assert core.records[0].outcome["seconds"] == (moved - before) + (max(bound) - after)


def test_scripted_transition_is_predicted_from_the_declared_rates() -> None:
    """One Destroy: no communicator to make, one operation that only releases, and what any transition takes."""
    core, _ = carried_out(SHRINKS)
    outcome = core.records[0].outcome
    assert EMULATED.release_s is not None
    assert outcome["l_tran_predicted_s"] == pytest.approx(EMULATED.base_s + EMULATED.release_s)
    assert [op["predicted_s"] for op in outcome["ops"]] == [EMULATED.release_s]


def test_held_destroy_is_told_without_the_proof_that_it_waited_for() -> None:
    core, began = carried_out(SHRINKS)
    (op,) = core.records[0].outcome["ops"]
    assert began[op["id"]] > max(times(core, DigestsTaken)) - 1
    assert op["start_s"] == pytest.approx(1 - WORKED_S)


def test_next_estimate_is_nearer_to_what_the_same_transition_took_before() -> None:
    """There and back, four times: a fact a second is far slower than declared."""
    back = {"stages": {REFERENCE_INFERENCE: choice(1, 1, 2, "4-5")}}
    script = [{**(SHRINKS if step % 2 else back), "step": step} for step in range(1, 9)]
    core, _ = carried_out(*script)
    errors = [abs(r.outcome["l_tran_predicted_s"] / r.outcome["seconds"] - 1) for r in core.records]
    assert len(errors) == 8
    assert max(errors[-2:]) < 0.3 < min(errors[:1])
    assert core.state.links != core.state.config.links == EMULATED


def test_rates_that_a_run_has_learnt_are_the_next_one_s_declaration() -> None:
    core, _ = carried_out(SHRINKS)
    rates = core.records[0].outcome["rates"]
    cluster = {"nodes": 2, "devices_per_node": 4, "device": {"kind": "cpu", "memory": "1MiB"}, "links": rates}
    assert scripted_config(cluster=cluster).links == core.state.links != EMULATED
    some = {**cluster, "links": {"wire_bytes_s": 1e9}}
    assert scripted_config(cluster=some).links == replace(EMULATED, wire_bytes_s=1e9)
