"""Expert parallelism inside the EMU: what its ranks keep, send and reduce, from the model's shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.components import Component, training_components
from nereus.cost.efficiency import UNSEEN, Efficiencies
from nereus.cost.execution import Execution
from nereus.cost.operations import OpClass
from nereus.cost.training import (
    expert_amounts,
    inference_workload,
    rank_expert_parameters,
    rank_parameters,
    training_workload,
    updated_parameters,
)
from nereus.spec.hardware import ACCELERATORS, LATENCY_S, LinkClass
from tests.cost.accelerators import LLAMA_8B, MIXTRAL, execution

H100 = ACCELERATORS["H100"]
EXPERTS = 32 * 8 * 3 * 4096 * 14_336
"""Parameters of Mixtral's experts: 8 in each of 32 layers, three matrices each."""
DENSE = 46_702_792_704 - EXPERTS
"""The rest, of the count that Mistral publishes."""


def moe(**changes: Any) -> Execution:
    return execution(tokens=1024, **changes)


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_ranks_keep_their_experts_and_all_the_rest(ep: int) -> None:
    run = moe(ep=ep)
    assert rank_expert_parameters(run, MIXTRAL, 0) == pytest.approx(EXPERTS / ep)
    assert rank_parameters(run, MIXTRAL, 0) == pytest.approx(DENSE + EXPERTS / ep, rel=1e-5)
    column = training_components(run, MIXTRAL)[0][list(Component).index(Component.PARAMETERS)]
    assert column == pytest.approx(2 * (DENSE + EXPERTS / ep), rel=1e-5)


def test_optimizer_state_is_sharded_over_the_replicas_of_each_kind_of_parameter() -> None:
    run = moe(ep=4, dp=2, zero1=True)
    assert updated_parameters(run, MIXTRAL, 0) == pytest.approx(DENSE / 8 + EXPERTS / 4 / 2, rel=1e-5)
    assert updated_parameters(replace(run, zero1=False), MIXTRAL, 0) == rank_parameters(run, MIXTRAL, 0)


@pytest.mark.parametrize(("tp", "ep", "link"), [(1, 8, LinkClass.NODE), (2, 4, LinkClass.NODE), (4, 4, LinkClass.NETWORK)])
def test_all_to_alls_carry_what_leaves_a_rank_over_the_link_of_their_group(tp: int, ep: int, link: LinkClass) -> None:
    """Each token goes to two experts and comes back: 2 x 4096 elements of two bytes, of which 1/ep stay."""
    found = expert_amounts(moe(tp=tp, ep=ep), MIXTRAL, 1000, 1)
    rate = H100.node_bytes_s if link is LinkClass.NODE else H100.network_bytes_s
    one_way = (ep - 1) / ep * 1000 * 2 * 4096 * 2 / rate + (ep - 1) * LATENCY_S[link]
    op = OpClass.EXPERTS_NODE if link is LinkClass.NODE else OpClass.EXPERTS_NETWORK
    assert found == {op: pytest.approx(2 * one_way)}


def test_training_sends_tokens_twice_as_often_as_inference_and_dense_models_never() -> None:
    run = moe(ep=4)

    def sent(work: Any) -> float:
        return float(work.phases[0].device[0][OpClass.EXPERTS_NODE.position])

    assert sent(training_workload(run, MIXTRAL)) == pytest.approx(2 * sent(inference_workload(run, MIXTRAL)))
    assert sent(training_workload(replace(run, ep=1), MIXTRAL)) == sent(training_workload(run, LLAMA_8B)) * 0


def test_gradients_of_experts_are_reduced_over_fewer_ranks() -> None:
    """All-reduces in float32: 2 (n - 1) / n of the bytes, dense over dp x ep ranks and experts over dp."""
    run = moe(ep=4, dp=2)
    reduced = training_workload(run, MIXTRAL).serial[OpClass.REDUCE_NODE.position]
    expected = (2 * 7 / 8 * DENSE * 4 + 2 * 1 / 2 * EXPERTS / 4 * 4) / H100.node_bytes_s
    assert reduced == pytest.approx(expected, rel=1e-5)


def test_token_step_reads_the_experts_that_tokens_of_all_ranks_ask_for() -> None:
    everything = MIXTRAL.read_ffn(1e9)
    assert MIXTRAL.read_ffn(1e9, 4) == pytest.approx(everything / 4)
    # One token on each of four ranks chooses 2 of 8 experts: an expert is asked for with 1 - (3/4)^4.
    assert MIXTRAL.read_ffn(1, 4) == pytest.approx(14_336 * 2 * (1 - 0.75**4))


def test_sequences_are_shared_out_over_replicas_and_their_ranks() -> None:
    assert moe(ep=4, dp=2, micro_batch=2).micro_batches == 64 / 8 / 2
    assert moe(ep=4, dp=2, tp=2, pp=2).devices == 32


def test_all_to_alls_start_conservative_and_are_never_free() -> None:
    for op in (OpClass.EXPERTS_NODE, OpClass.EXPERTS_NETWORK):
        assert 0 < UNSEEN[op].value <= 0.5
    model = AcceleratorModel(Efficiencies("H100"))
    inside, over = (replace(moe(ep=8), hardware=replace(moe().hardware, devices_per_node=node)) for node in (8, 4))
    assert model.inference(inside, MIXTRAL).seconds < model.inference(over, MIXTRAL).seconds
