"""State that is kept on the host: it leaves the device, and comes at the price of the link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.components import Component, fullest_components, generation_components, offloaded_bytes
from nereus.cost.efficiency import UNSEEN, Efficiencies
from nereus.cost.execution import Offload
from nereus.cost.operations import OpClass
from nereus.spec.hardware import ACCELERATORS
from nereus.spec.weights import num_parameters
from tests.cost.accelerators import LLAMA_8B, execution

MODEL = AcceleratorModel(Efficiencies("H100"))
EFFICIENCY = UNSEEN[OpClass.OFFLOAD].value
LINK = ACCELERATORS["H100"].host_bytes_s
PARAMETERS = num_parameters(LLAMA_8B.decoder)


@pytest.mark.parametrize(("dp", "zero1"), [(1, False), (4, True), (4, False)])
def test_optimizer_on_the_host_passes_through_in_every_update(dp: int, zero1: bool) -> None:
    """A float32 master and two moments per parameter of the shard, there and back."""
    here = execution(dp=dp, zero1=zero1)
    there = replace(here, offload=Offload.OPTIMIZER)
    shard = PARAMETERS * 12 / (dp if zero1 else 1)
    assert offloaded_bytes(there, LLAMA_8B) == pytest.approx(shard, rel=1e-3)
    more = MODEL.training(there, LLAMA_8B).seconds - MODEL.training(here, LLAMA_8B).seconds
    assert more == pytest.approx(2 * shard / LINK / EFFICIENCY, rel=1e-3)
    kept, left = (fullest_components(run, LLAMA_8B)[0] for run in (here, there))
    at = list(Component).index(Component.OPTIMIZER)
    assert kept[at] == pytest.approx(shard, rel=1e-3)
    assert left[at] == 0
    assert kept.sum() - left.sum() == pytest.approx(kept[at])


@pytest.mark.parametrize("tp", [1, 4])
def test_frozen_parameters_come_from_the_host_once_in_a_stage(tp: int) -> None:
    here = execution(tp=tp)
    there = replace(here, offload=Offload.PARAMETERS)
    shard = PARAMETERS * 2 / tp
    assert offloaded_bytes(there, LLAMA_8B) == pytest.approx(shard, rel=1e-2)
    more = MODEL.inference(there, LLAMA_8B).seconds - MODEL.inference(here, LLAMA_8B).seconds
    assert more == pytest.approx(shard / LINK / EFFICIENCY, rel=1e-2)
    # While it computes they are on the device all the same.
    assert (generation_components(here, LLAMA_8B, 0.0) == generation_components(there, LLAMA_8B, 0.0)).all()


def test_nothing_is_offloaded_unless_asked_for() -> None:
    assert offloaded_bytes(execution(), LLAMA_8B) == 0
