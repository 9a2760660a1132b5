"""Who sends how much to whom, against the moves themselves; and how much has to be sent, against masks."""

from __future__ import annotations

from collections import Counter

import pytest

from nereus.layout.catalog import EndpointId
from nereus.transition.collectives import AllGather
from nereus.transition.ops import Op, Transition
from nereus.transition.traffic import missing_bytes, moved_bytes, new_groups, wire_bytes
from tests.builders import make_emus, make_model, make_plan
from tests.layout.bounds import lacking_bytes
from tests.layout.cases import SHAPES
from tests.layout.models import thin_trained_state
from tests.transition.scenarios import current_emus, planned, target_plan
from tests.transition.test_carrying_over import on_any_devices

TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))
WAYS = [
    pytest.param(*way, id=name)
    for name, way in (("fused", (True, False)), ("unfused", (False, False)), ("streamed", (True, True)))
]
each_way = pytest.mark.parametrize(("fuse", "stream"), WAYS)
Pair = tuple[EndpointId, EndpointId]


def transitions(fuse: bool, stream: bool) -> list[Transition]:
    found = []
    for seed in range(40):
        current, target, devices = on_any_devices(seed)
        plan = make_plan(target, devices=devices)
        found.append(planned(TRAINED, current, plan, fuse=fuse, stream=stream, bucket_bytes=300))
    return found


def carried(op: Op) -> Counter[Pair]:
    """Bytes of an operation from an endpoint to another, move by move."""
    found: Counter[Pair] = Counter()
    for move in op.copies:
        found[move.source.endpoint, move.target.endpoint] += move.num_bytes
    for exchange in op.exchanges:
        if isinstance(exchange, AllGather):
            for member, parts in zip(exchange.group.members, exchange.parts, strict=True):
                for other in exchange.group.members:
                    if other != member and parts:
                        found[member, other] += sum(part.num_bytes for part in parts)
        else:
            for move in exchange.moves:
                found[move.source.endpoint, move.target.endpoint] += move.num_bytes
    return found


@each_way
def test_moved_bytes_are_those_of_all_moves(fuse: bool, stream: bool) -> None:
    for transition in transitions(fuse, stream):
        expected: Counter[Pair] = Counter()
        for op in transition.ops:
            expected += carried(op)
        assert moved_bytes(transition) == expected
        assert sum(size for (a, b), size in expected.items() if a != b) == transition.num_bytes


@each_way
def test_wire_bytes_are_what_each_endpoint_sends_and_receives_in_each_bucket(fuse: bool, stream: bool) -> None:
    for transition in transitions(fuse, stream):
        for op in transition.ops:
            parts = [op.of_tensors(bucket) for bucket in op.stream.buckets] if op.stream else [op]
            assert len(wire_bytes(op)) == len(parts)
            for found, part in zip(wire_bytes(op), parts, strict=True):
                wire = {pair: size for pair, size in carried(part).items() if pair[0] != pair[1]}
                sent, received = Counter[EndpointId](), Counter[EndpointId]()
                for (a, b), size in wire.items():
                    sent[a] += size
                    received[b] += size
                assert found == {e: (sent[e], received[e]) for e in {*sent, *received}}


@each_way
def test_what_all_endpoints_send_is_what_all_receive(fuse: bool, stream: bool) -> None:
    for transition in transitions(fuse, stream):
        for op in transition.ops:
            for moved in wire_bytes(op):
                assert sum(sent for sent, _ in moved.values()) == sum(received for _, received in moved.values())


@pytest.mark.parametrize("source", SHAPES[::6])
def test_missing_bytes_are_what_the_target_endpoints_lack(source: str) -> None:
    for seed, target in enumerate(SHAPES[::3]):
        current = current_emus(source, seed)
        size = len(target_plan(current, target).devices)
        after = make_emus(target, devices=range(size), epoch=1)
        assert missing_bytes(current, after, TRAINED) == lacking_bytes(TRAINED, current, after).total(), target


@each_way
def test_each_member_of_a_communicator_makes_it_once(fuse: bool, stream: bool) -> None:
    for transition in transitions(fuse, stream):
        groups = new_groups(transition)
        used = {key for op in transition.ops for key in op.groups}
        assert {key for keys in groups.values() for key in keys} == used
        for endpoint, keys in groups.items():
            assert list(keys) == sorted(key for key in used if endpoint in key.members)
