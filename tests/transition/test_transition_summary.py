"""What a summary of a transition says, against brute force on small models and arithmetic on large ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu, counter_tensors, phi
from nereus.layout.catalog import StateSpec
from nereus.layout.dense import state_spec
from nereus.layout.layout import Layout
from nereus.spec.hf_config import parse_hf_config
from nereus.transition.estimate import LinkRates
from nereus.transition.summary import Feasible, Link, Question, Summary, device_of, summarize_transition
from tests.builders import make_model, make_plan, make_state, rank_masks

STAGE = "actor_training"
WIDTH = {"float32": 4, "bfloat16": 2, "int64": 8}
SMALL = make_state(make_model(num_layers=4, num_heads=4, num_kv_heads=2, tied=True), optimizer=True)


def ask(before: StagePlan, after: StagePlan, state: StateSpec = SMALL, **more: Any) -> Summary:
    asked = {"devices_per_node": 4, **more}
    return summarize_transition(Question(before={STAGE: before}, after={STAGE: after}, states={STAGE: state}, **asked))


def size_of(state: StateSpec) -> int:
    return sum(tensor.num_elements * WIDTH[tensor.dtype] for tensor in state.tensors)


def emus_of(plan: StagePlan) -> list[Emu]:

    return list(phi(plan, {device: f"d{device}.0" for device in plan.devices}, 0))


def lacking(state: StateSpec, before: StagePlan, after: StagePlan) -> int:
    """Bytes that the devices of the plan after need and do not hold, element by element."""
    have = {(endpoint, t.ref): mask for emu in emus_of(before) for endpoint, t, mask in rank_masks(state, emu)}
    return sum(
        int((mask & ~have.get((endpoint, tensor.ref), np.zeros_like(mask))).sum()) * WIDTH[tensor.dtype]
        for emu in emus_of(after)
        for endpoint, tensor, mask in rank_masks(state, emu)
    )


PAIRS = [
    ("tp4 pp2", "tp2 pp2 dp2"),
    ("tp2 dp2", "tp4"),
    ("pp4 dp2", "tp2 pp2 dp2"),
    ("dp2", "dp3"),
    ("dp3", "dp1"),
    ("tp2 dp3 zero1", "tp2 dp2"),
    ("dp4", "dp4 zero1"),
    ("tp2 fsdp2", "fsdp4"),
    ("fsdp2 dp2", "fsdp4"),
]


@pytest.mark.parametrize("keep_order", [False, True])
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_no_byte_is_sent_that_the_ranks_do_not_lack(before: str, after: str, keep_order: bool) -> None:
    summary = ask(make_plan(before), make_plan(after), keep_order=keep_order)
    missing = lacking(SMALL, make_plan(before), summary.after[STAGE])
    sent = sum(num_bytes for (source, target), num_bytes in summary.moved.items() if source != target)
    assert summary.lower_bound == sent == missing


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_chosen_ranks_lack_no_more_than_the_listed_ones(before: str, after: str) -> None:
    chosen, listed = (ask(make_plan(before), make_plan(after), keep_order=keep) for keep in (False, True))
    assert chosen.lower_bound <= listed.lower_bound
    assert sorted(chosen.after[STAGE].devices) == list(listed.after[STAGE].devices)


def test_listed_ranks_are_kept_on_request() -> None:
    after = make_plan("tp2 dp2", devices=(3, 1, 0, 2))
    assert ask(make_plan("tp4"), after, keep_order=True).after == {STAGE: after}


def test_bytes_are_told_apart_by_what_lies_between_the_devices() -> None:
    summary = ask(make_plan("dp1"), make_plan("dp3", devices=(0, 1, 4)))
    assert {link: num_bytes > 0 for link, num_bytes in summary.bytes_by_link.items()} == {
        Link.LOCAL: False,
        Link.NODE: True,
        Link.NETWORK: True,
    }
    assert summary.bytes_by_link[Link.NODE] + summary.bytes_by_link[Link.NETWORK] == 2 * size_of(SMALL)


def test_plan_that_stays_moves_nothing_in_whichever_order_its_replicas_are_listed() -> None:
    summary = ask(make_plan("tp2 dp2"), make_plan("tp2 dp2", devices=(2, 3, 0, 1)))
    assert (summary.transition.ops, summary.moved, summary.seconds) == ((), {}, 0.0)
    assert set(summary.peak_bytes) == {0, 1, 2, 3}


def test_replicas_that_share_optimizer_state_are_not_interchangeable() -> None:
    before, after = make_plan("dp2 zero1"), make_plan("dp2 zero1", devices=(1, 0))
    assert ask(before, after, keep_order=True).lower_bound > 0
    assert ask(before, after).lower_bound == 0


def test_only_the_model_stages_that_change_have_operations() -> None:
    other = make_plan("dp2", stage="critic_training")
    question = Question(
        before={STAGE: make_plan("tp2"), "critic_training": other},
        after={STAGE: make_plan("tp1 dp2"), "critic_training": other},
        states={STAGE: SMALL, "critic_training": SMALL},
        devices_per_node=8,
    )
    summary = summarize_transition(question)
    assert {op.stage for op in summary.transition.ops} == {STAGE}
    assert {name: entry["changes"] for name, entry in summary.as_dict()["stages"].items()} == {
        STAGE: True,
        "critic_training": False,
    }


def test_peak_of_an_extend_is_the_replica_and_the_buffers_and_that_of_others_is_counted() -> None:
    size, other = size_of(SMALL), make_plan("dp1", stage="critic_training")
    question = Question(
        before={STAGE: make_plan("dp1"), "critic_training": other},
        after={STAGE: make_plan("dp2"), "critic_training": other},
        states={STAGE: SMALL, "critic_training": SMALL},
        devices_per_node=8,
        bucket_bytes=1000,
    )
    assert summarize_transition(question).peak_bytes == {0: 2 * size + 1000, 1: size + 1000}


def test_transition_that_does_not_fit_at_once_is_streamed() -> None:
    state = state_spec(parse_hf_config(LLAMA_8B, "config.json").decoder, "bfloat16", counter_tensors(), optimizer=True)
    before, after = make_plan("tp2 pp2"), make_plan("tp2 dp1 pp1 fsdp2")
    unlimited = ask(before, after, state)
    assert (unlimited.feasible, unlimited.transition.ops[0].stream) == (Feasible.FEASIBLE, None)
    peak = max(unlimited.peak_bytes.values())
    streamed = ask(before, after, state, usable_bytes=0.8 * peak)
    assert streamed.feasible is Feasible.FEASIBLE
    assert max(streamed.peak_bytes.values()) <= 0.8 * peak
    entry = streamed.as_dict()["ops"][0]
    assert entry["mode"] == "streamed"
    assert entry["buckets"] > 10


@pytest.mark.parametrize(
    ("before", "after", "usable", "reason"),
    [
        ("dp1", "tp2", 0.9, "the plan that it starts from needs {size} bytes on device 0, {usable} are usable"),
        ("tp2", "dp1", 0.9, "the plan that it leads to needs {size} bytes on device 0, {usable} are usable"),
        ("dp1", "dp2", 1.001, "e1.0.Extend needs {more} bytes on device 0, {usable} are usable"),
    ],
)
def test_transition_that_cannot_fit_says_which_device_is_too_small(
    before: str, after: str, usable: float, reason: str
) -> None:
    size = size_of(SMALL)
    limit = int(usable * size)
    summary = ask(make_plan(before), make_plan(after), usable_bytes=limit, bucket_bytes=1000)
    assert summary.feasible is Feasible.INFEASIBLE_MEMORY
    # In a stream, a bucket is half of the 1000 bytes, or one tensor where that is larger.
    largest = max(tensor.item_bytes * tensor.num_elements for tensor in SMALL.tensors)
    assert summary.reason == reason.format(size=size, usable=limit, more=size + largest)


def test_seconds_are_set_up_and_the_longest_chain() -> None:
    rates = LinkRates(wire_bytes_s=1e6, op_s=1.0, group_s=0.25, base_s=1.0)
    summary = ask(make_plan("dp1"), make_plan("dp2"), rates=rates)
    assert summary.seconds == pytest.approx(2 * 0.25 + 1.0 + size_of(SMALL) / 1e6 + 1.0)


def test_printed_operations_name_units_and_devices() -> None:
    entries = ask(make_plan("tp2 dp2"), make_plan("tp2 dp1", devices=(0, 1))).as_dict()["ops"]
    (entry,) = entries
    assert entry["primitives"] == ["Destroy"]
    assert (entry["makes"], entry["frees"]) == ({}, {"actor_training/1@0": [2, 3]})
    (entry,) = ask(make_plan("tp2 dp2"), make_plan("tp4")).as_dict()["ops"]
    assert entry["primitives"] == ["Merge"]
    assert sorted(entry["makes"]["actor_training/0@1"]) == [0, 1, 2, 3]


def test_after_of_a_printed_plan_is_a_plan_with_its_ranks_chosen() -> None:
    summary = ask(make_plan("tp4"), make_plan("tp2 dp2 zero1"))
    entry = summary.as_dict()["stages"][STAGE]["after"]
    assert entry == {
        "tp": 2, "pp": 1, "dp": 2, "fsdp": 1, "zero1": True, "micro_batch": 1, "recompute": False,
        "devices": list(summary.after[STAGE].devices),
    }  # fmt: skip


def test_devices_are_those_of_the_endpoints() -> None:
    assert [device_of(endpoint) for endpoint in ("d0.0", "d17.3")] == [0, 17]


LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
LLAMA_405B = LLAMA_8B | {
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "intermediate_size": 53248,
}


def test_405b_on_1024_devices_sends_each_shard_once_to_each_new_replica() -> None:
    state = state_spec(parse_hf_config(LLAMA_405B, "config.json").decoder, "bfloat16", counter_tensors(), optimizer=True)
    summary = ask(make_large(8, 16, 8), make_large(8, 8, 16), state, devices_per_node=8)
    whole = 253 * 16384  # the norms, which each of 8 TP ranks has whole
    cut = 405_853_388_800 - whole
    assert summary.lower_bound == 8 * (cut + 8 * whole) * 14  # 2 bytes and three times 4 of each parameter
    assert sum(summary.bytes_by_link.values()) - summary.bytes_by_link[Link.LOCAL] == summary.lower_bound
    assert Counter(p for op in summary.transition.ops for p in op.primitives) == {"Split": 8}
    assert len(summary.peak_bytes) == 1024


def make_large(tp: int, pp: int, dp: int) -> StagePlan:

    return StagePlan(STAGE, Layout(tp, pp), dp, tuple(range(tp * pp * dp)))
