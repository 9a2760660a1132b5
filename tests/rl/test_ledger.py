"""The data order: every prompt once per epoch, through crashes and restores, and books that would show it if not.

Trap 13: samples were lost or repeated when jobs changed size.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.errors import PreconditionError, UserError
from nereus.rl.ledger import SampleId, SampleLedger


def run_steps(ledger: SampleLedger, sizes: list[int], first: int = 0) -> list[tuple[int, int]]:
    used = []
    for step, n in enumerate(sizes, first):
        used += [(sample.epoch, sample.prompt) for sample in ledger.lease(step, n)]
        ledger.commit(step)
    return used


def test_each_prompt_is_used_once_per_epoch_in_another_order() -> None:
    used = run_steps(SampleLedger(12, 0), [4] * 9)
    epochs = [[prompt for epoch, prompt in used if epoch == e] for e in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_the_seed_and_not_on_the_step_sizes() -> None:
    assert run_steps(SampleLedger(10, 1), [3, 7, 5]) == run_steps(SampleLedger(10, 1), [5] * 3)
    assert run_steps(SampleLedger(10, 1), [10]) != run_steps(SampleLedger(10, 2), [10])


def test_a_lease_is_the_same_until_it_is_committed() -> None:
    ledger = SampleLedger(8, 0)
    first = ledger.lease(0, 3)
    assert ledger.lease(0, 3) == first
    assert ledger.position == 0
    ledger.commit(0)
    assert ledger.position == 3
    assert not set(ledger.lease(1, 3)) & set(first)


def test_response_ids_are_unique_over_the_run() -> None:
    ledger, ids = SampleLedger(4, 0), []
    for step in range(4):
        ids += [response for sample in ledger.lease(step, 3) for response in sample.responses(5)]
        ledger.commit(step)
    assert ids == list(range(4 * 3 * 5))


def test_committing_the_last_step_again_changes_nothing() -> None:
    ledger = SampleLedger(8, 0)
    run_steps(ledger, [3])
    before = ledger.state()
    ledger.commit(0)
    assert ledger.state() == before


def test_leases_and_commits_out_of_order_are_refused() -> None:
    ledger = SampleLedger(8, 0)
    with pytest.raises(PreconditionError, match="step 0 cannot be committed"):
        ledger.commit(0)
    ledger.lease(0, 2)
    with pytest.raises(PreconditionError, match="step 1 asks for 2 prompts while step 0 holds 2"):
        ledger.lease(1, 2)
    with pytest.raises(PreconditionError, match="step 0 asks for 3 prompts"):
        ledger.lease(0, 3)
    ledger.commit(0)
    with pytest.raises(PreconditionError, match="step 0 is committed"):
        ledger.lease(0, 2)
    with pytest.raises(PreconditionError, match="at least 1"):
        ledger.lease(1, 0)


def test_the_books_show_a_sample_that_was_used_twice_and_one_that_was_left_out() -> None:
    ledger = SampleLedger(6, 0)
    leased = ledger.lease(0, 4)
    ledger.commit(0, used=[leased[0], leased[0], leased[1], leased[2]])
    assert (ledger.seen, ledger.repeated, ledger.skipped) == (4, 1, 1)
    ledger.lease(1, 2)
    ledger.commit(1)
    assert (ledger.seen, ledger.repeated, ledger.skipped) == (6, 1, 1)
    ledger.lease(2, 1)
    ledger.commit(2, used=[leased[1]])  # an epoch too late
    assert (ledger.seen, ledger.repeated, ledger.skipped) == (7, 2, 2)


def test_a_restored_ledger_refuses_another_data_set_or_seed() -> None:
    state = SampleLedger(6, 0).state()
    with pytest.raises(UserError, match="num_prompts: the run started with 6, the job says 7"):
        SampleLedger(7, 0).restore(state)
    with pytest.raises(UserError, match="seed"):
        SampleLedger(6, 1).restore(state)
    with pytest.raises(UserError, match="num_prompts: 0"):
        SampleLedger(0, 0)


@settings(max_examples=100, deadline=None)
@given(
    num_prompts=st.integers(1, 20),
    seed=st.integers(0, 3),
    steps=st.lists(st.tuples(st.integers(1, 25), st.integers(0, 3)), max_size=15),
)
def test_crashes_between_lease_and_commit_lose_and_repeat_nothing(
    num_prompts: int, seed: int, steps: list[tuple[int, int]]
) -> None:
    """Each step leases, crashes a number of times with the state of before or after the lease, and commits."""
    ledger = SampleLedger(num_prompts, seed)
    used: list[SampleId] = []
    for step, (n, crashes) in enumerate(steps):
        saved = json.dumps(ledger.state())
        leased = ledger.lease(step, n)
        for crash in range(crashes):
            if crash % 2:
                saved = json.dumps(ledger.state())
            ledger = SampleLedger(num_prompts, seed)
            ledger.restore(json.loads(saved))
            assert ledger.lease(step, n) == leased
        ledger.commit(step)
        used += leased
    total = sum(n for n, _ in steps)
    counts = Counter((sample.epoch, sample.prompt) for sample in used)
    full, rest = divmod(total, num_prompts)
    assert len(counts) == total
    assert Counter(epoch for epoch, _ in counts) == Counter(
        dict.fromkeys(range(full), num_prompts) | ({full: rest} if rest else {})
    )
    assert (ledger.position, ledger.seen, ledger.repeated, ledger.skipped) == (total, total, 0, 0)
