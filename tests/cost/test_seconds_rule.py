"""How amounts become seconds: the slowest rank, a floor by the host, what hides; and latency grows with the work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.efficiency import Efficiencies
from nereus.cost.operations import OpClass, amounts
from nereus.cost.seconds import seconds, seconds_of, stack
from nereus.cost.training import training_workload
from nereus.cost.volume import Phase, Workload, nothing
from tests.cost.accelerators import LLAMA_8B, execution

ONE = np.ones(len(OpClass))


def _phase(gemm: float, dispatch: float = 0.0, slots: float = 1.0) -> Phase:
    return Phase(slots, (amounts({OpClass.GEMM: gemm}),), (amounts({OpClass.DISPATCH: dispatch}),))


def test_slots_follow_one_another_at_the_pace_of_the_slowest_rank() -> None:
    phase = Phase(10, (amounts({OpClass.GEMM: 1}), amounts({OpClass.GEMM: 3})), (nothing(), nothing()))
    assert seconds_of(Workload((phase,)), ONE) == pytest.approx(30)


def test_the_host_is_a_floor() -> None:
    assert seconds_of(Workload((_phase(1.0, 100.0),)), ONE) == pytest.approx(100, rel=1e-6)
    assert seconds_of(Workload((_phase(100.0, 1.0),)), ONE) == pytest.approx(100, rel=1e-6)
    assert 1.0 < seconds_of(Workload((_phase(1.0, 1.0),)), ONE) < 1.2


def test_a_hidden_part_costs_what_sticks_out() -> None:
    work = Workload((_phase(3.0, slots=4),), hidden=amounts({OpClass.REDUCE_NODE: 5.0}), hides=2 / 3)
    assert seconds_of(work, ONE) == pytest.approx(12 + 5 - 2)
    small = replace(work, hidden=amounts({OpClass.REDUCE_NODE: 1.0}))
    assert seconds_of(small, ONE) == pytest.approx(12)


def test_many_workloads_at_once_are_each_as_alone() -> None:
    works = [training_workload(execution(tp=tp, pp=pp), LLAMA_8B) for tp, pp in ((1, 1), (2, 4), (8, 1))]
    inverse = Efficiencies("H100").inverse
    assert seconds(stack(works), inverse) == pytest.approx([seconds_of(work, inverse) for work in works])


@settings(deadline=None)
@given(
    st.sampled_from([(1, 1), (2, 1), (8, 2), (1, 4)]),
    st.floats(128, 32_768),
    st.floats(1.01, 4),
    st.booleans(),
)
def test_more_tokens_never_take_less(layout: tuple[int, int], tokens: float, factor: float, zero1: bool) -> None:
    run = execution(tp=layout[0], pp=layout[1], dp=2, tokens=tokens, zero1=zero1)
    known = Efficiencies("H100")
    longer = replace(run, tokens=tokens * factor)
    assert known.seconds(training_workload(longer, LLAMA_8B)) > known.seconds(training_workload(run, LLAMA_8B))


@settings(deadline=None)
@given(st.integers(1, 512), st.integers(1, 64))
def test_more_sequences_never_take_less(sequences: int, more: int) -> None:
    known = Efficiencies("H100")
    few = known.seconds(training_workload(execution(dp=4, sequences=sequences), LLAMA_8B))
    assert known.seconds(training_workload(execution(dp=4, sequences=sequences + more), LLAMA_8B)) >= few
