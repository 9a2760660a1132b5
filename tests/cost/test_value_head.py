"""A head of one value in place of the language-model head: parameters, logits and FLOPs, by their shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.cost.components import Component, generation_components, training_components
from nereus.cost.layer import Architecture
from nereus.cost.operations import OpClass
from nereus.cost.training import inference_workload, rank_parameters, training_workload
from nereus.planner.accelerators import Pricer
from nereus.spec.hardware import ACCELERATORS
from nereus.spec.outline import parse_outline
from nereus.spec.weights import num_parameters
from tests.cost.accelerators import LLAMA_8B, execution
from tests.spec.test_outline import OUTLINE

CRITIC = Architecture(LLAMA_8B.decoder, values=1)
TIED = replace(LLAMA_8B.decoder, tied=True)
HIDDEN, VOCABULARY = 4096, 128_256
PEAK = ACCELERATORS["H100"].peak_flops["bfloat16"]
LOGITS = list(Component).index(Component.LOGITS)


@pytest.mark.parametrize("pp", [1, 4])
def test_parameters_lack_the_language_model_head(pp: int) -> None:
    run = execution(pp=pp)
    total = sum(rank_parameters(run, CRITIC, rank) for rank in range(pp))
    # num_parameters has the final norm too.
    assert total == pytest.approx(num_parameters(LLAMA_8B.decoder) - HIDDEN * VOCABULARY + HIDDEN, abs=HIDDEN)


def test_head_of_values_is_never_tied() -> None:
    untied, tied = (rank_parameters(execution(), Architecture(d, values=1), 0) for d in (LLAMA_8B.decoder, TIED))
    assert untied == tied
    logits = rank_parameters(execution(), Architecture(TIED), 0)
    assert tied == pytest.approx(logits + HIDDEN)


def test_values_of_a_micro_batch_take_eight_bytes_each() -> None:
    run = execution(micro_batch=2, tp=2)
    trained, scored = training_components(run, CRITIC)[0][LOGITS], generation_components(run, CRITIC, 0.0)[0][LOGITS]
    assert trained == scored == 8 * 2 * 4096
    assert training_components(run, LLAMA_8B)[0][LOGITS] == 8 * 2 * 4096 * VOCABULARY / 2


@pytest.mark.parametrize(("workload", "passes"), [(inference_workload, 1), (training_workload, 3)])
def test_flops_lack_those_of_the_logits(workload: type, passes: int) -> None:
    run = execution()
    slots = [work.phases[0].device[-1][OpClass.GEMM.position] for work in (workload(run, LLAMA_8B), workload(run, CRITIC))]
    assert slots[0] - slots[1] == pytest.approx(passes * 2 * 4096 * HIDDEN * (VOCABULARY - 1) / PEAK)


def test_critic_and_reward_model_of_an_outline_give_values() -> None:
    pricer = Pricer(parse_outline(OUTLINE), {}, {})
    heads = {}
    for holder in pricer.outline.workflow.holders:
        models = dict.fromkeys(("actor", "critic", "reference", "reward"), type("M", (), {"decoder": LLAMA_8B.decoder}))
        heads[holder] = replace(pricer, models=models).architecture(holder).values  # type: ignore[arg-type]
    assert {holder for holder, values in heads.items() if values == 1} == {"critic_training", "reward_inference"}
    assert {heads[holder] for holder in ("actor_generation", "actor_training", "reference_inference")} == {0}
