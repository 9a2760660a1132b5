"""Seats: no device twice, a declared node on one node of the cluster, and all that there is room for, by brute force."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from nereus.policy.seating import Node, PoolDevice, Shape, all_seated, free_devices, seated, still_there

shapes = st.builds(Shape, st.integers(1, 3), st.integers(1, 3), st.booleans())
clusters = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(
    lambda sizes: tuple(Node(id=f"n{at}", devices=size) for at, size in enumerate(sizes))
)


def assert_lawful(shape: Shape, seats: dict[int, PoolDevice], nodes: tuple[Node, ...]) -> None:
    devices = list(seats.values())
    assert len(set(devices)) == len(devices), "no seat twice"
    assert set(devices) <= {seat for node in nodes for seat in node.all}
    by_declared: dict[int, set[str]] = {}
    for place, seat in seats.items():
        by_declared.setdefault(place // shape.each, set()).add(seat.node)
    assert all(len(found) == 1 for found in by_declared.values()), "a declared node is on one node"
    if shape.apart:
        found = [next(iter(nodes)) for nodes in by_declared.values()]
        assert len(set(found)) == len(found), "accelerators: a node each"


@given(shapes, clusters, st.sets(st.integers(0, 8)))
def test_seats_are_lawful_and_grow_by_what_comes(shape: Shape, nodes: tuple[Node, ...], wanted: set[int]) -> None:
    wanted &= set(shape.places)
    first = seated(shape, {}, free_devices(nodes, ()), wanted)
    assert set(first) <= wanted
    assert_lawful(shape, first, nodes)
    assert bool(first) == bool(wanted and any(node.devices for node in nodes))
    more = (*nodes, Node(id="new", devices=shape.each))
    grown = {**first, **seated(shape, first, free_devices(more, set(first.values())), shape.places)}
    assert_lawful(shape, grown, more)


@given(shapes, clusters, st.sets(st.integers(0, 8)))
def test_what_is_needed_is_seated_exactly_where_some_order_of_nodes_has_room(
    shape: Shape, nodes: tuple[Node, ...], needed: set[int]
) -> None:
    needed &= set(shape.places)
    found = all_seated(shape, {}, free_devices(nodes, ()), sorted(needed))
    if found is not None:
        assert set(found) == needed
        assert_lawful(shape, found, nodes)
    sizes = [len([p for p in needed if p // shape.each == at]) for at in range(shape.nodes)]
    sizes = [size for size in sizes if size]
    if shape.apart:
        fits = any(
            all(node.devices >= size for node, size in zip(order, sizes, strict=False))
            for order in permutations(nodes, min(len(sizes), len(nodes)))
        ) and len(nodes) >= len(sizes)
        assert (found is not None) == fits
    elif found is not None:
        assert sum(sizes) <= sum(node.devices for node in nodes)


@given(clusters, st.data())
def test_seats_of_nodes_that_went_are_gone_and_others_stay(nodes: tuple[Node, ...], data: st.DataObject) -> None:
    shape = Shape(2, 3, False)
    seats = seated(shape, {}, free_devices(nodes, ()), shape.places)
    left = tuple(data.draw(st.lists(st.sampled_from(nodes), unique=True)))
    kept = still_there(seats, left)
    assert kept == {place: seat for place, seat in seats.items() if seat.node in {node.id for node in left}}


def test_nothing_new_is_put_on_a_node_that_leaves() -> None:
    nodes = (Node(id="a", devices=2, is_leaving=True, gone_s=1.0), Node(id="b", devices=1))
    assert seated(Shape(1, 2, False), {}, free_devices(nodes, ()), (0, 1)) == {0: PoolDevice("b", 0)}
