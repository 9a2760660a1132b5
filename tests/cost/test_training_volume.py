"""The work of a training update: bubbles, collectives and recomputation by the formulas of the papers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.cost.execution import MEGATRON, MEGATRON_2021, NANOTRON, PLAIN, Recompute, Regime
from nereus.cost.operations import OpClass
from nereus.cost.training import inference_workload, rank_parameters, training_workload
from nereus.cost.volume import Workload
from tests.cost.accelerators import GPT_175B, LLAMA_8B, execution

H100_FLOPS, HBM, NVLINK, NETWORK = 989e12, 3.35e12, 450e9, 50e9


def _slot(work: Workload, op: OpClass) -> float:
    return float(work.phases[0].device[0][op.position])


def test_the_bubble_of_1f1b_is_pp_minus_one_slots() -> None:
    """Narayanan et al. 2021: bubble over ideal time is (p - 1) / m."""
    work = training_workload(execution(pp=4, sequences=32), GPT_175B)
    assert work.phases[0].slots == 32 + 3


def test_an_update_of_gpt_costs_what_megatrons_formula_says() -> None:
    """Narayanan et al. 2021: 96 B s L h^2 (1 + s / 6h + V / 16 L h) with full recomputation; a causal mask halves s / 6h."""
    tokens, hidden, layers, vocabulary = 2048, 12_288, 96, 51_200
    run = execution(sequences=1, tokens=tokens, recompute=Recompute.FULL)
    work = training_workload(run, GPT_175B)
    found = sum(_slot(work, op) for op in (OpClass.GEMM, OpClass.ATTENTION)) * H100_FLOPS
    formula = 96 * tokens * layers * hidden**2 * (1 + tokens / (12 * hidden) + vocabulary / (16 * layers * hidden))
    assert found == pytest.approx(formula, rel=1e-6)


def test_recomputation_adds_a_forward_of_the_layers_and_not_of_the_head() -> None:
    plain = training_workload(execution(pp=2), LLAMA_8B)
    again = training_workload(execution(pp=2, recompute=Recompute.FULL), LLAMA_8B)
    assert _slot(again, OpClass.GEMM) == pytest.approx(_slot(plain, OpClass.GEMM) * 4 / 3)
    assert _slot(again, OpClass.ATTENTION) == pytest.approx(_slot(plain, OpClass.ATTENTION) * 4 / 3)


def test_tp_moves_four_all_reduces_per_layer() -> None:
    """Shoeybi et al. 2020: two in the forward, two in the backward; a ring moves 2 (t - 1) / t of the bytes."""
    work = training_workload(execution(tp=4), LLAMA_8B)
    bytes_moved = _slot(work, OpClass.TP_NODE) * NVLINK
    assert bytes_moved == pytest.approx(32 * 4 * 2 * 3 / 4 * 4096 * 4096 * 2)


def test_tp_across_nodes_goes_over_the_network() -> None:
    work = training_workload(execution(tp=16), LLAMA_8B)
    assert _slot(work, OpClass.TP_NODE) == 0
    assert _slot(work, OpClass.TP_NETWORK) > 0


def test_gradients_are_all_reduced_in_float32() -> None:
    run = execution(dp=8)
    work = training_workload(run, LLAMA_8B)
    assert work.serial[OpClass.REDUCE_NODE.position] * NVLINK == pytest.approx(
        2 * 7 / 8 * 4 * rank_parameters(run, LLAMA_8B, 0)
    )


def test_zero1_scatters_gradients_and_gathers_parameters() -> None:
    """Rajbhandari et al. 2020: a reduce-scatter and an all-gather, half an all-reduce each."""
    run = execution(dp=8, zero1=True)
    work = training_workload(run, LLAMA_8B)
    assert work.serial[OpClass.REDUCE_NODE.position] == 0
    expected = 7 / 8 * (4 + 2) * rank_parameters(run, LLAMA_8B, 0)
    assert work.serial[OpClass.SCATTER_NODE.position] * NVLINK == pytest.approx(expected)


def test_replicas_in_a_node_share_its_ways_out() -> None:
    """16 replicas on two nodes: eight network cards carry one gradient instead of one."""
    run = execution(dp=16)
    crossing = 2 * 15 / 16 * 4 * rank_parameters(run, LLAMA_8B, 0)
    work = training_workload(run, LLAMA_8B)
    assert work.serial[OpClass.REDUCE_NETWORK.position] == pytest.approx(crossing / (8 * NETWORK))


def test_overlapped_gradients_hide_behind_the_last_backward() -> None:
    work = training_workload(execution(dp=8, regime=Regime(overlaps_gradients=True)), LLAMA_8B)
    assert work.serial[OpClass.REDUCE_NODE.position] == 0
    assert work.hidden[OpClass.REDUCE_NODE.position] > 0
    assert work.hides == pytest.approx(2 / 3)


def test_scores_of_attention_go_through_memory_before_flash_attention() -> None:
    """What Dao et al. 2022 save: the square of each head, written by one kernel and read by the next, three times."""
    tokens, heads, layers, forwards = 2048, 96, 96, 4
    run = execution(sequences=1, tokens=tokens, recompute=Recompute.FULL, regime=MEGATRON)
    flash, before = (training_workload(replace(run, regime=regime), GPT_175B) for regime in (MEGATRON, MEGATRON_2021))
    more = _slot(before, OpClass.ELEMENTWISE) - _slot(flash, OpClass.ELEMENTWISE)
    assert more == pytest.approx(layers * forwards * 3 * 2 * 2 * heads * tokens**2 / HBM)
    assert _slot(before, OpClass.GEMM) == _slot(flash, OpClass.GEMM)
    assert _slot(before, OpClass.ATTENTION) == pytest.approx(2 * _slot(flash, OpClass.ATTENTION))


def test_inference_is_a_third_of_a_training_slot() -> None:
    scored, trained = inference_workload(execution(), LLAMA_8B), training_workload(execution(), LLAMA_8B)
    assert _slot(scored, OpClass.GEMM) == pytest.approx(_slot(trained, OpClass.GEMM) / 3)
    assert scored.serial[OpClass.OPTIMIZER.position] == 0


@pytest.mark.parametrize("regime", [PLAIN, MEGATRON])
def test_stalls_belong_to_a_regime_and_can_be_switched_off(regime: Regime) -> None:
    run = execution(pp=4, dp=16, sequences=1024, regime=regime)
    assert training_workload(run, LLAMA_8B, near_capacity=True).phases[0].between[OpClass.STALL.position] == 0
    quirky = replace(run, regime=NANOTRON)
    assert training_workload(quirky, LLAMA_8B, near_capacity=True).phases[0].between[OpClass.STALL.position] > 0
    assert training_workload(replace(quirky, zero1=True), LLAMA_8B).phases[0].between[OpClass.STALL.position] == 0
