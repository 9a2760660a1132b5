"""What every endpoint installs for an epoch: its part of the operations, the weight sync, and the communicators of all."""

from __future__ import annotations

from nereus.control.state import JobState, sync_op
from nereus.emu.groups import compute_groups
from nereus.transition.lowering import lower_sync
from nereus.transition.ops import COMPUTE, GroupKey, Op, Program, program_for


def programs(state: JobState, ops: tuple[Op, ...]) -> tuple[tuple[Program, ...], frozenset[GroupKey]]:
    """The programs of all endpoints for the state's plan and units, and the communicators that stay after its commit."""
    config, epoch, sync = state.config, state.plan.epoch, weight_sync(state)
    members = compute_groups(state.bound, config.job.model.num_kv_heads)
    groups = frozenset(GroupKey.of(group, COMPUTE) for group in members)
    made = tuple(
        program_for(endpoint, epoch, (*ops, sync), groups, config.states)
        for _, endpoint in sorted(state.endpoint_of.items())
    )
    return made, groups | sync.groups


def weight_sync(state: JobState) -> Op:
    """The weight sync of the state's plan and units."""
    config = state.config
    return lower_sync(
        state.emus[config.trains],
        config.states[config.trains],
        state.emus[config.generates],
        config.states[config.generates],
        sync_op(state.plan.epoch),
        state.snapshot.endpoint_nodes,
        config.job.policy.bucket,
    )
