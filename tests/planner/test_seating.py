"""Who takes the places of a plan: devices that hold its model-stages already, within nodes and among nodes of one size."""

from __future__ import annotations

from nereus.planner.seats import settled

TWO_NODES = [0, 0, 1, 1]


def test_devices_of_a_node_are_exchanged_so_that_model_stages_stay() -> None:
    assert settled({"a": (0,), "b": (1,)}, [0, 0], {"a": {1}, "b": {0}}) == {"a": (1,), "b": (0,)}


def test_nodes_of_one_size_are_exchanged_so_that_model_stages_stay() -> None:
    assert settled({"a": (0, 1), "b": (2, 3)}, TWO_NODES, {"a": {2, 3}, "b": {0, 1}}) == {"a": (2, 3), "b": (0, 1)}


def test_nodes_of_different_sizes_keep_their_places() -> None:
    places = {"a": (0, 1, 2), "b": (3,)}
    assert settled(places, [0, 0, 0, 1], {"a": {3}, "b": {0, 1, 2}}) == places


def test_nothing_is_exchanged_where_nothing_is_held() -> None:
    places = {"a": (0, 2), "b": (1, 3), "c": (0, 1)}
    assert settled(places, TWO_NODES, {}) == places


def test_model_stages_that_share_devices_still_do_after_the_exchange() -> None:
    settled_places = settled({"a": (0, 1), "b": (1, 2), "c": (3,)}, TWO_NODES, {"a": {1, 3}, "b": {0}, "c": {2}})
    shared = set(settled_places["a"]) & set(settled_places["b"])
    assert len(shared) == 1
    assert not set(settled_places["c"]) & (set(settled_places["a"]) | set(settled_places["b"]))
