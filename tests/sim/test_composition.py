"""Steps out of their model-stages: sums where devices are shared, the longest path where they are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.sim.composition import Composition
from nereus.spec.workflow import Algorithm, Workflow, workflow

PPO = workflow(Algorithm.PPO)
# generation, reference, reward, critic inference, actor training, critic training, weight sync
SECONDS = (50.0, 7.0, 5.0, 3.0, 20.0, 30.0, 2.0)


def composed(flow: Workflow, devices: dict[str, set[int]], seconds: tuple[float, ...]) -> float:
    return Composition.of(flow, {name: frozenset(used) for name, used in devices.items()}).seconds(seconds)


def test_on_one_pool_everything_adds_up() -> None:
    assert composed(PPO, {name: {0, 1} for name in PPO.holders}, SECONDS) == sum(SECONDS)


def test_on_devices_of_their_own_only_the_longest_of_each_stage_counts() -> None:
    apart = {name: {place} for place, name in enumerate(PPO.holders)}
    assert composed(PPO, apart, SECONDS) == 50 + 7 + 30 + 2


def test_a_shared_device_serializes_the_two_that_share_it() -> None:
    devices = {name: {place} for place, name in enumerate(PPO.holders)}
    devices["reference_inference"] = devices["reward_inference"] = {9}
    assert composed(PPO, devices, SECONDS) == 50 + (7 + 5) + 30 + 2


def test_asynchronously_generation_runs_beside_the_rest() -> None:
    flow = workflow(Algorithm.GRPO, asynchronous=True)
    devices = {name: {1} for name in flow.holders} | {"actor_generation": {0}}
    for generation in (10.0, 100.0):
        assert composed(flow, devices, (generation, 7.0, 5.0, 20.0, 2.0)) == max(generation, 7 + 5 + 20) + 2


@given(
    st.sampled_from([(a, b) for a in Algorithm for b in (False, True)]),
    st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=6, max_size=6),
    st.lists(st.floats(0.1, 100), min_size=8, max_size=8),
)
def test_a_step_is_what_a_loop_over_a_clock_finds(
    job: tuple[Algorithm, bool], sets: list[set[int]], seconds: list[float]
) -> None:
    """Brute force: every device has a time at which it is free; every model-stage one at which it has ended."""
    flow = workflow(job[0], asynchronous=job[1])
    devices = dict(zip(flow.holders, sets, strict=False))
    names = [stage.name for stage in flow.stages]
    ended: dict[str, float] = {}
    free = dict.fromkeys(range(5), 0.0)
    for name, own in zip(names, seconds, strict=False):
        needed = [ended[earlier] for earlier, later in flow.dependencies() if later == name]
        used = devices[flow.stage(name).holder]
        ended[name] = max([0.0, *needed, *(free[device] for device in used)]) + own
        free |= dict.fromkeys(used, ended[name])
    boundary = max(ended.values())
    last = boundary
    free = dict.fromkeys(free, boundary)
    for sync, own in zip(flow.syncs, seconds[len(names) :], strict=False):
        used = devices[sync.source] | devices[sync.target]
        end = max(free[device] for device in used) + own
        free |= dict.fromkeys(used, end)
        last = max(last, end)
    tasks = tuple(seconds[: len(names) + len(flow.syncs)])
    assert composed(flow, devices, tasks) == pytest.approx(last)
