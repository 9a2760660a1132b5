"""Weight syncs between processes: cast on the way, once over the slow link, nothing that never changes; and masters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nereus.emu.unit import Emu
from nereus.errors import StoreError
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.dense import EMBED
from nereus.transition.collectives import Pairwise
from nereus.transition.lowering import lower_sync
from nereus.transition.ops import BUCKET_BYTES, Op, Transition
from tests.builders import make_emus
from tests.transport.faulty_store import Fault
from tests.transport.fleet import Fleet
from tests.transport.interrupting import MISSED_S, break_and_mend
from tests.transport.models import mixed_state, served_state

pytestmark = pytest.mark.gloo

TWO_NODES = {f"d{device}.0": device // 4 for device in range(8)}
GENERATION = "actor_generation"


def sync_op(
    sources: tuple[Emu, ...],
    trained: StateSpec,
    targets: tuple[Emu, ...],
    served: StateSpec,
    bucket_bytes: int = BUCKET_BYTES,
) -> Op:
    return lower_sync(sources, trained, targets, served, "sync", TWO_NODES, bucket_bytes)


def moved(op: Op) -> Iterator[tuple[EndpointId, EndpointId, int]]:
    """From where to where, and how many bytes."""
    for exchange in op.exchanges:
        assert isinstance(exchange, Pairwise)
        for move in exchange.moves:
            size = sum(move.box.volume * tensor.item_bytes for tensor in move.tensors)
            yield move.source.endpoint, move.target.endpoint, size


def between_nodes(op: Op) -> int:
    """Bytes that cross from one node to the other."""
    return sum(size for source, target, size in moved(op) if TWO_NODES[source] != TWO_NODES[target])


def trained_bytes(state: StateSpec) -> int:
    return sum(tensor.num_elements * tensor.item_bytes for tensor in state.tensors if not tensor.frozen)


@pytest.mark.parametrize(
    ("source", "target", "bucket_bytes"),
    [
        ("tp2 pp2", "tp2 dp2", BUCKET_BYTES),
        ("tp2 pp2", "dp4", BUCKET_BYTES),
        ("tp2 pp2", "dp4", 2048),
        ("fsdp2 dp2", "tp4", 2048),
        ("tp3", "tp2 pp2", BUCKET_BYTES),
        ("tp2 dp2 zero1", "pp2 dp2", BUCKET_BYTES),
    ],
)
def test_sync_to_another_node_is_cast_and_crosses_once(fleet: Fleet, source: str, target: str, bucket_bytes: int) -> None:
    trained, served = mixed_state(dtype="float32"), served_state()
    epoch = fleet.next_epoch()
    sources = make_emus(source, epoch=epoch)
    targets = make_emus(target, stage=GENERATION, devices=range(4, 8), epoch=epoch)
    fleet.seed(sources, trained)
    op = sync_op(sources, trained, targets, served, bucket_bytes)
    assert between_nodes(op) == trained_bytes(served)
    fleet.seed(targets, served, blank=True)
    fleet.install([op], {}, epoch)
    groups = set(op.groups)
    for _ in range(2):
        assert fleet.run_dag(Transition((op,), targets)) == op.num_bytes
        assert fleet.wrong_tensors(targets, served, trained) == []
        assert fleet.wrong_tensors(sources, trained, trained) == []
        fleet.bind((*sources, *targets), groups)


def test_sync_with_relays_passes_on_what_has_arrived() -> None:
    trained, served = mixed_state(), served_state()
    sources, targets = make_emus("tp2 pp2"), make_emus("dp4", stage=GENERATION, devices=range(4, 8))
    op = sync_op(sources, trained, targets, served)
    assert {exchange.wave for exchange in op.exchanges} == {0, 1}
    received = {endpoint: sum(size for _, target, size in moved(op) if target == endpoint) for endpoint in op.members}
    expected: dict[EndpointId, int] = dict.fromkeys(sources[0].endpoints, 0) | {
        emu.endpoints[0]: trained_bytes(served) for emu in targets
    }
    assert received == expected


def test_sync_onto_devices_that_hold_the_weights_copies_what_is_there(fleet: Fleet) -> None:
    trained, served = mixed_state(dtype="float32"), served_state()
    epoch = fleet.next_epoch()
    sources = make_emus("tp2 pp2 dp2", epoch=epoch)
    targets = make_emus("tp4 dp2", stage=GENERATION, epoch=epoch)
    fleet.seed(sources, trained)
    fleet.seed(targets, served, blank=True)
    op = sync_op(sources, trained, targets, served)
    assert op.copies
    assert between_nodes(op) == 0
    fleet.install([op], {}, epoch)
    assert fleet.run_dag(Transition((op,), targets)) == op.num_bytes
    assert fleet.wrong_tensors(targets, served, trained) == []


def test_sync_does_not_send_frozen_tensors_and_leaves_them_as_they_are(fleet: Fleet) -> None:
    trained, served = mixed_state(dtype="float32", frozen_embedding=True), served_state(frozen_embedding=True)
    epoch = fleet.next_epoch()
    sources = make_emus("tp2 pp2", epoch=epoch)
    targets = make_emus("dp4", stage=GENERATION, devices=range(4, 8), epoch=epoch)
    fleet.seed(sources, trained)
    fleet.seed(targets, served, blank=True)
    op = sync_op(sources, trained, targets, served)
    frozen = [tensor for tensor in served.tensors if tensor.frozen]
    assert [tensor.name for tensor in frozen] == [EMBED]
    assert between_nodes(op) == trained_bytes(served) < sum(t.num_elements * t.item_bytes for t in served.tensors)
    fleet.install([op], {}, epoch)
    assert fleet.run_dag(Transition((op,), targets)) == op.num_bytes
    wrong = fleet.wrong_tensors(targets, served, trained)
    assert sorted(wrong) == [f"{EMBED} at d{device}.0" for device in range(4, 8)]


def test_sync_that_broke_is_run_again_and_then_complete(fleet: Fleet) -> None:
    trained, served = mixed_state(dtype="float32"), served_state()
    epoch = fleet.next_epoch()
    sources = make_emus("tp2 pp2", epoch=epoch)
    targets = make_emus("dp4", stage=GENERATION, devices=range(4, 8), epoch=epoch)
    fleet.seed(sources, trained)
    fleet.seed(targets, served, blank=True)
    op = sync_op(sources, trained, targets, served, 2048)
    fleet.install([op], {}, epoch, MISSED_S)
    culprit = targets[1].endpoints[0]
    fleet.call(culprit, "fail_once", Fault("land", targets[1].unit, served.tensors[-9].ref))
    break_and_mend(fleet, op, culprit, RuntimeError | StoreError | None)
    assert fleet.run_dag(Transition((op,), targets)) == op.num_bytes
    assert fleet.wrong_tensors(targets, served, trained) == []
