"""What a pricer remembers is what it would tell again: every way to run a holder, on every pool that shares the memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.planner.accelerators import Pricer
from nereus.planner.options import Option
from tests.planner.test_expert_plans import moe_planner

NODE = {"kind": "H100", "memory": "40GiB", "devices": 4, "count": 2, "host_memory": "1TiB"}


def told(pricer: Pricer, option: Option) -> tuple[float, ...]:
    """Seconds and bytes of an option, by stage and component."""
    stages = pricer.outline.workflow.roles(option.holder)
    seconds = [pricer.seconds(stage, option.kind, option.run) for stage in stages]
    return (*seconds, *pricer.memory(option.holder, option.kind, option.run).values())


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_prices_that_are_remembered_are_those_that_are_told_anew(algorithm: str) -> None:
    """PPO's critic and reward model have the actor's decoder with another head."""
    found = moe_planner(algorithm=algorithm, nodes=[NODE])
    for table in found.priced:
        for option in table[:: max(1, len(table) // 60)]:
            anew = replace(found.pricer, told={})
            assert told(found.pricer, option) == told(anew, option)
            assert sum(option.seconds.values()) == sum(told(anew, option)[: len(option.seconds)])


def test_pools_with_other_hosts_share_what_was_told_and_not_their_seconds() -> None:
    near, far = (moe_planner(nodes=[{**NODE, "host_bytes_s": rate}]) for rate in ("50GB", "5GB"))
    shared = replace(far, told=near.told)
    assert [o.seconds for table in near.priced for o in table] != [o.seconds for table in far.priced for o in table]
    assert shared.priced == far.priced
