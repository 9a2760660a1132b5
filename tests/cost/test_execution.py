"""How a planned model-stage becomes an execution, and where its groups lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.cost.batch import Batch
from nereus.cost.execution import MEGATRON, NANOTRON, execution_of
from nereus.emu.plan import StagePlan
from nereus.errors import LayoutError
from nereus.layout.layout import Layout
from nereus.spec.hardware import ACCELERATORS, Hardware
from tests.cost.accelerators import execution

BATCH = Batch(sequences=512, prompt_tokens=512, response_tokens=1536, updates=4)


def _stage(tp: int, pp: int, dp: int, **changes: int) -> StagePlan:
    layout = Layout(tp=tp, pp=pp, **changes)
    return StagePlan("actor_training", layout, dp, tuple(range(dp * layout.size)), micro_batch=2, zero1=True)


def test_an_update_has_its_share_of_the_steps_sequences() -> None:
    run = execution_of(_stage(2, 2, 4), Hardware(ACCELERATORS["H100"]), BATCH, trains=True)
    assert (run.tp, run.pp, run.dp, run.micro_batch, run.zero1) == (2, 2, 4, 2, True)
    assert run.tokens == 2048
    assert run.micro_batches == 512 / 4 / 4 / 2


def test_an_axis_without_a_price_is_refused() -> None:
    with pytest.raises(LayoutError, match="fsdp"):
        execution_of(_stage(1, 1, 1, fsdp=4), Hardware(ACCELERATORS["H100"]), BATCH, trains=True)


def test_the_order_of_ranks_decides_what_leaves_a_node() -> None:
    """tp2 pp4 dp4 on nodes of eight: an EMU fits in a node, or else a stage with its replicas does."""
    ours = execution(tp=2, pp=4, dp=4)
    megatron = replace(ours, regime=MEGATRON)
    assert (ours.hop_span, ours.replica_span, ours.replicas_per_node) == (8, 32, 1)
    assert (megatron.hop_span, megatron.replica_span, megatron.replicas_per_node) == (32, 8, 4)


def test_micro_batches_are_those_of_the_busiest_replica() -> None:
    assert execution(sequences=10, dp=4, micro_batch=2).micro_batches == 2


def test_a_replicated_optimizer_stalls_only_where_it_was_seen_to() -> None:
    run = execution(pp=4, dp=16, sequences=1024, regime=NANOTRON)
    assert run.replicated_stall
    assert not replace(run, zero1=True).replicated_stall
    assert not replace(run, pp=1).replicated_stall
    assert not replace(run, sequences=64).replicated_stall
    assert not replace(run, regime=MEGATRON).replicated_stall
