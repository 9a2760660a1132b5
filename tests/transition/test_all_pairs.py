"""Every pair of plans over at most eight devices, planned and replayed on numpy shards in one process.

    38 shapes (tp, pp, dp) x 38, each in three forms: plain, ZeRO-1, and FSDP in place of DP

The oracle is the global tensors cut afresh; the lower bound is counted on masks.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

import pytest

from tests.builders import make_emus, shape_texts
from tests.layout.bounds import lacking_bytes
from tests.layout.models import MODELS, NUM_LAYERS
from tests.transition.scenarios import current_emus, planned, replay, target_plan, wrong_shards

FORMS = ("plain", "zero1", "fsdp")
SHAPES = {form: shape_texts(8, NUM_LAYERS, form) for form in FORMS}
COMPLETE = ("tied, 3 kv heads", "fused, 2 kv heads")
"""The models on which all pairs are replayed; the others get a sample."""

MIXED = [
    *("tp2 fsdp2 dp2", "pp2 fsdp2 dp2", "tp2 pp2 fsdp2", "fsdp3 dp2", "tp2 fsdp3", "fsdp2 dp4 zero1", "fsdp4 dp2"),
    *("tp2 fsdp2 dp2 zero1", "pp2 fsdp2 dp2 zero1", "tp2 dp4", "tp2 dp3 zero1", "pp3 dp2 zero1", "tp3 pp2", "tp8", "dp7"),
]
"""Layouts of all three forms."""

SOURCES = [pytest.param(form, source, id=source) for form in FORMS for source in SHAPES[form]]


class Outcome(NamedTuple):
    """What a transition did, in bytes."""

    moved: int
    lacking: int
    """What the target endpoints do not hold before it."""
    naive: int
    """What they would not hold with the target's ranks in the order of devices."""


@cache
def carried(model: str, source: str, target: str, seed: int) -> Outcome:
    """Plan and replay one pair, from devices in an order that depends on the seed."""
    state, current = MODELS[model], current_emus(source, seed)
    plan = target_plan(current, target, state)
    transition = planned(state, current, plan)
    assert wrong_shards(state, replay(state, current, transition.ops), transition.result) == [], target
    in_order = make_emus(target, devices=sorted(plan.devices), epoch=1)
    bounds = (lacking_bytes(state, current, emus).total() for emus in (transition.result, in_order))
    return Outcome(transition.num_bytes, *bounds)


def outcomes(model: str, form: str, source: str) -> dict[str, Outcome]:
    """What the transition to every target of a form did."""
    return {target: carried(model, source, target, seed) for seed, target in enumerate(SHAPES[form])}


def assert_carried(model: str, source: str, target: str, seed: int, *, fuse: bool = True, stream: bool = False) -> None:
    """The same in another way: unfused, in buckets, or both."""
    state, current = MODELS[model], current_emus(source, seed)
    transition = planned(state, current, target_plan(current, target), fuse=fuse, stream=stream, bucket_bytes=400)
    run = replay(state, current, [*transition.moving, *transition.held])
    assert wrong_shards(state, run, transition.result) == [], target


# --- on two models, all pairs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", COMPLETE)
@pytest.mark.parametrize(("form", "source"), SOURCES)
def test_every_pair_leaves_the_global_state_cut_afresh(form: str, source: str, model: str) -> None:
    assert len(outcomes(model, form, source)) == len(SHAPES[form])


@pytest.mark.parametrize("model", COMPLETE)
@pytest.mark.parametrize(("form", "source"), SOURCES)
def test_every_pair_moves_as_many_bytes_as_the_target_endpoints_lack(form: str, source: str, model: str) -> None:
    found = outcomes(model, form, source)
    assert {target: o.moved for target, o in found.items()} == {target: o.lacking for target, o in found.items()}


@pytest.mark.parametrize("model", COMPLETE)
@pytest.mark.parametrize(("form", "source"), SOURCES)
def test_every_pair_moves_no_more_than_ranks_in_the_order_of_devices(form: str, source: str, model: str) -> None:
    assert {target: o for target, o in outcomes(model, form, source).items() if o.moved > o.naive} == {}


@pytest.mark.parametrize(("form", "source"), SOURCES)
def test_every_pair_leaves_the_same_state_as_a_stream(form: str, source: str) -> None:
    for seed, target in enumerate(SHAPES[form]):
        assert_carried(COMPLETE[0], source, target, seed, stream=True)


@pytest.mark.parametrize(("form", "source"), [case for case in SOURCES if case.values[0] != "zero1"])
def test_every_pair_leaves_the_same_state_unfused(form: str, source: str) -> None:
    """With ZeRO-1 there is no other way than one movement of the whole model-stage."""
    for seed, target in enumerate(SHAPES[form]):
        assert_carried(COMPLETE[1], source, target, seed, fuse=False)


# --- on all models, a sample -------------------------------------------------------------------------------------------


def sample(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of any two forms."""
    random, texts = Random(seed), [*MIXED, *(text for form in FORMS for text in SHAPES[form][::3])]
    return [(random.choice(texts), random.choice(texts)) for _ in range(count)]


@pytest.mark.parametrize("model", [name for name in MODELS if name not in COMPLETE])
@pytest.mark.parametrize(("fuse", "stream"), [(True, False), (True, True), (False, False), (False, True)])
def test_sampled_pairs_leave_the_global_state_cut_afresh(model: str, fuse: bool, stream: bool) -> None:
    count = 6 if model.startswith("all") else 40
    for seed, (source, target) in enumerate(sample(count, seed=len(model))):
        assert_carried(model, source, target, seed, fuse=fuse, stream=stream)


@pytest.mark.parametrize("source", MIXED)
@pytest.mark.parametrize("target", MIXED)
def test_plan_of_one_form_turns_into_one_of_another(source: str, target: str) -> None:
    for model in COMPLETE:
        found = carried(model, source, target, 1)
        assert found.moved == found.lacking
