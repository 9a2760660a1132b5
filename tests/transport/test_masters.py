"""Parameters are the casts of their master copies after every move, and a digest is not taken of ones that are stale.

Trap 9: masters were loaded and model weights were not refreshed.
"""

from __future__ import annotations

import pytest

from nereus.errors import DigestMismatch
from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import Kind
from nereus.transport.digest import unit_digests
from nereus.transport.memory import DeviceMemory
from nereus.transport.store import UnitStore
from tests.builders import make_emus
from tests.transport.carrying import Mode, carry_out, plan_of
from tests.transport.fleet import Fleet
from tests.transport.models import mixed_state
from tests.transport.oracle import whole
from tests.transport.pair import matrix
from tests.transport.worker import CPU

UNIT = UnitId("actor_training", 0, 0)


@pytest.mark.gloo
@pytest.mark.parametrize("mode", [Mode(), Mode(stream=True, bucket_bytes=4096)], ids=str)
def test_parameters_are_the_casts_of_their_masters_after_every_move(fleet: Fleet, mode: Mode) -> None:
    state = mixed_state()
    masters = sum(tensor.num_elements for tensor in state.tensors if tensor.kind is Kind.MASTER)
    emus = make_emus("tp2 pp2 dp2", epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    for text in ("tp2 dp3 zero1", "tp3 pp2 dp1", "fsdp4 dp2", "tp1 pp3 dp2 zero1"):
        emus = carry_out(fleet, emus, plan_of(emus, text), state, mode)
        checked = [fleet.call_all(emu.endpoints, "stale_parameters", emu, state) for emu in emus]
        answers = [answer for each in checked for answer in each.values()]
        assert [name for _, stale in answers for name in stale] == []
        assert sum(count for count, _ in answers) >= masters


def test_digest_of_a_parameter_that_is_not_its_master_is_refused_by_name() -> None:
    parameter = matrix("w", 4, 6, "bfloat16")
    master, part = parameter.as_kind(Kind.MASTER, "float32"), Box((1, 0), (3, 6))
    store = UnitStore(CPU, DeviceMemory("cpu", 1000))
    store.open(UNIT, {parameter: (Box.whole(parameter.shape),), master: (part,)})
    for tensor, box in ((parameter, Box.whole(parameter.shape)), (master, part)):
        store.write(UNIT, tensor.ref, box).copy_(whole(tensor)[box.slices((0, 0))])
        store.land(UNIT, tensor.ref, box)
    assert len(unit_digests(store, UNIT)) == 2
    store.read(UNIT, parameter.ref, Box((0, 0), (1, 6))).zero_()
    assert len(unit_digests(store, UNIT)) == 2  # there is no master of this row here
    store.read(UNIT, parameter.ref, Box((2, 5), (3, 6))).zero_()
    with pytest.raises(DigestMismatch, match=r"w \(1, 0\):\(3, 6\) is not its master copy in torch.bfloat16"):
        unit_digests(store, UNIT)
