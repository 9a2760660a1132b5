"""The same plans give the same operations under the same names: on every call, and in every process.

What is planned is journaled and replayed, so it may not depend on the order of a set or on what was planned before.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nereus.transition.ops import Transition
from tests.builders import make_emus, make_model, make_plan
from tests.layout.cases import SHAPES
from tests.layout.models import thin_trained_state
from tests.transition.scenarios import current_emus, of_stages, planned, target_plan
from tests.transition.test_carrying_over import on_any_devices

TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))
ROOT = Path(__file__).parents[2]


def some_transitions() -> list[Transition]:
    """Transitions of all forms on any devices: fused, unfused and streamed."""
    found = []
    for seed in range(30):
        current, target, devices = on_any_devices(seed)
        plan = make_plan(target, devices=devices)
        found.append(planned(TRAINED, current, plan, fuse=seed % 3 != 1, stream=seed % 3 == 2, bucket_bytes=300))
    return found


def fingerprint() -> str:
    return hashlib.sha256(repr(some_transitions()).encode()).hexdigest()


@pytest.mark.parametrize("source", SHAPES[::8])
def test_transition_is_the_same_each_time(source: str) -> None:
    for target in SHAPES[::4]:
        once, again = (planned(TRAINED, c, target_plan(c, target, TRAINED)) for c in (current_emus(source, 2),) * 2)
        assert once == again


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_transitions_are_the_same_in_every_process(hash_seed: str) -> None:
    """Python orders sets of names by a hash that each process seeds anew."""
    command = "from tests.transition.test_determinism import fingerprint; print(fingerprint())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == fingerprint()


def test_operations_are_numbered_in_dispatch_order_and_named_after_their_primitives() -> None:
    transition = planned(TRAINED, make_emus("tp2 dp2"), make_plan("pp2 dp3"))
    names = ["+".join(dict.fromkeys(op.primitives)) for op in transition.ops]
    assert [op.id for op in transition.ops] == [f"e1.{place}.{name}" for place, name in enumerate(names)]


def test_operations_are_the_same_whatever_order_the_stages_are_given_in() -> None:
    first = {"b_training": 0, "a_training": 4}
    current = {stage: make_emus("tp2", stage=stage, devices=[at, at + 1]) for stage, at in first.items()}
    targets = {stage: make_plan("pp2", stage=stage, devices=[at, at + 1]) for stage, at in first.items()}
    there = of_stages(current, targets)
    back = of_stages(dict(reversed(current.items())), dict(reversed(targets.items())))
    assert there == back
