"""Efficiencies: unseen is never free, what was measured is found again, and a disturbed run moves little."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from nereus.cost.accelerator import AcceleratorModel, Measured
from nereus.cost.efficiency import UNSEEN, Efficiencies
from nereus.cost.execution import Execution
from nereus.cost.operations import OpClass
from nereus.cost.training import training_workload
from nereus.cost.volume import Workload
from tests.cost.accelerators import LLAMA_8B, execution

PLANS = [(tp, pp, dp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4) for dp in (1, 4, 16)]

TRUTH = {OpClass.GEMM: 0.62, OpClass.TP_NODE: 0.8, OpClass.REDUCE_NETWORK: 0.22, OpClass.ELEMENTWISE: 0.7}
"""A machine that differs from what is assumed of unseen classes."""


def runs() -> list[Execution]:
    """Plans of up to 512 devices."""
    return [execution(tp=tp, pp=pp, dp=dp, sequences=512) for tp, pp, dp in PLANS]


def works() -> list[Workload]:
    return [training_workload(run, LLAMA_8B) for run in runs()]


def true_seconds(noise: float = 0.0) -> list[float]:
    """What these plans take on that machine."""
    values = {**UNSEEN, **{op: UNSEEN[op]._replace(value=value) for op, value in TRUTH.items()}}
    exact = [Efficiencies("truth", values).seconds(work) for work in works()]
    return list(np.array(exact) * np.exp(noise * np.random.default_rng(1).standard_normal(len(exact))))


@pytest.mark.parametrize("op", OpClass)
def test_no_unseen_class_is_free(op: OpClass) -> None:
    assert 0 < UNSEEN[op].value <= 1.0
    assert UNSEEN[op].spread > 0
    assert not UNSEEN[op].measured


def test_work_of_unmeasured_classes_takes_at_least_its_datasheet_time() -> None:
    for work in works():
        assert Efficiencies("H100").seconds(work) >= Efficiencies("H100").inverse.min() * min(
            float(np.max([device.sum() for device in phase.device])) * phase.slots for phase in work.phases
        )


def test_times_of_plans_never_measured_are_found_after_others_were() -> None:
    half = slice(None, None, 2)
    known = Efficiencies("H100").learn(works()[half], true_seconds(noise=0.02)[half])
    errors = [abs(known.seconds(work) / true - 1) for work, true in zip(works()[1::2], true_seconds()[1::2], strict=True)]
    assert np.median(errors) < 0.02
    assert max(errors) < 0.12
    before = [abs(Efficiencies("H100").seconds(work) / true - 1) for work, true in zip(works(), true_seconds(), strict=True)]
    assert np.median(before) > 0.05


def test_one_disturbed_run_moves_little() -> None:
    times = true_seconds()
    times[5] *= 10
    known = Efficiencies("H100").learn(works(), times)
    errors = [abs(known.seconds(work) / true - 1) for work, true in zip(works(), true_seconds(), strict=True)]
    assert np.median(errors) < 0.03


def test_a_class_that_did_not_occur_stays_unseen() -> None:
    known = Efficiencies("H100").learn(works(), true_seconds())
    assert known.values[OpClass.KV_READ] == UNSEEN[OpClass.KV_READ]
    assert known.values[OpClass.GEMM].measured


def test_measurements_narrow_what_they_touch() -> None:
    known = Efficiencies("H100").learn(works(), true_seconds())
    assert known.values[OpClass.GEMM].spread < UNSEEN[OpClass.GEMM].spread
    work = works()[0]
    assert known.uncertainty(work) < Efficiencies("H100").uncertainty(work)


def test_time_widens_what_is_known_up_to_the_unseen() -> None:
    known = Efficiencies("H100").learn(works(), true_seconds())
    assert known.drifting(2.0).values[OpClass.GEMM].spread > known.values[OpClass.GEMM].spread
    assert known.drifting(1e9).values[OpClass.GEMM].spread == UNSEEN[OpClass.GEMM].spread


def test_what_was_learnt_is_saved_and_loaded() -> None:
    rows = [Measured(run, LLAMA_8B, seconds, 40e9) for run, seconds in zip(runs(), true_seconds(), strict=True)]
    known = AcceleratorModel(Efficiencies("H100")).learn(rows)
    again = AcceleratorModel.from_json(json.loads(json.dumps(known.as_json())))
    assert again == known


def test_a_timed_peak_is_saved_and_loaded_as_one() -> None:
    known = Efficiencies("cpu", common=3.0)
    assert Efficiencies.from_json(json.loads(json.dumps(known.as_json()))) == known


def test_a_timed_peak_may_be_exceeded_and_a_datasheet_may_not() -> None:
    fast = [seconds / 20 for seconds in true_seconds()]
    assert Efficiencies("H100").learn(works(), fast).values[OpClass.GEMM].value <= 1.0
    assert Efficiencies("cpu", common=3.0).learn(works(), fast).values[OpClass.GEMM].value > 2.0


def test_a_file_from_before_a_class_existed_leaves_it_unseen() -> None:
    saved = Efficiencies("H100").learn(works(), true_seconds()).as_json()
    del saved["classes"][OpClass.STALL.value]
    assert Efficiencies.from_json(saved).values[OpClass.STALL] == UNSEEN[OpClass.STALL]


def test_learning_leaves_the_old_model_as_it_was() -> None:
    before = Efficiencies("H100")
    before.learn(works(), true_seconds())
    assert before == replace(before, num_measured=0)
    assert before.values == UNSEEN
