"""What every endpoint installs for an epoch: its part of the operations, the weight sync, and the communicators of all."""

from __future__ import annotations

from collections import Counter

from nereus.control.state import JobState, sync_op
from nereus.emu.groups import compute_groups
from nereus.layout.catalog import EndpointId
from nereus.transition.collectives import COMPUTE, GroupKey
from nereus.transition.estimate import op_seconds
from nereus.transition.lowering import lower_sync
from nereus.transition.ops import MIN_TIMEOUT_S, Op, Program, program_for

TIMEOUT_FACTOR = 10.0
"""Waits for a peer are bounded by so many times the predicted duration of the whole transition."""

LEAST_SYNC_BUCKET = 1 << 16
"""Bytes of buffers each way without which messages of a weight sync would be too small to be worth sending."""

MAX_SPARE_GROUPS = 8
"""Communicators of a transition that an endpoint keeps for the next: each holds a few threads and file descriptors."""


def programs(state: JobState, ops: tuple[Op, ...]) -> tuple[tuple[Program, ...], frozenset[GroupKey]]:
    """The programs of all endpoints for the state's plan and units, and the communicators that stay after its commit."""
    config, epoch, sync = state.config, state.plan.epoch, weight_sync(state)
    members = compute_groups(state.bound, config.num_kv_heads)
    groups = frozenset(GroupKey.of(group, COMPUTE) for group in members)
    timeout_s = max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * sum(op_seconds(op, state.links) for op in (*ops, sync)))
    made = tuple(
        program_for(endpoint, epoch, (*ops, sync), groups, config.states, timeout_s)
        for _, endpoint in sorted(state.endpoint_of.items())
    )
    return made, groups | sync.groups | _spare(state, ops)


def _spare(state: JobState, ops: tuple[Op, ...]) -> frozenset[GroupKey]:
    """Groups of the operations that stay for the next transition: those of endpoints that stay, a few on each."""
    stays = {endpoint for device, endpoint in state.endpoint_of.items() if device not in state.leaving}
    kept: set[GroupKey] = set()
    count: Counter[EndpointId] = Counter()
    for key in sorted({key for op in ops for key in op.groups}):
        if stays.issuperset(key.members) and all(count[member] < MAX_SPARE_GROUPS for member in key.members):
            kept.add(key)
            count.update(key.members)
    return frozenset(kept)


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
        sync_bucket(state),
    )


def sync_bucket(state: JobState) -> int:
    """The most that a weight sync holds in buffers on a device each way: the policy's bucket, or half of what is free there.

    It runs between steps, beside the units alone: gradients, activations and caches are not there. Plans that fit leave room
    for those, so that there is some for it. A device whose memory is not known has room for the policy's bucket.
    """
    config, usable = state.config, state.pricing.usable_bytes
    if usable <= 0:
        return config.policy.bucket
    ends = {endpoint for name in (config.trains, config.generates) for emu in state.emus[name] for endpoint in emu.endpoints}
    held: Counter[EndpointId] = Counter()
    for emu in state.bound:
        spec = config.states[emu.stage]
        for rank, endpoint in enumerate(emu.endpoints):
            held[endpoint] += spec.shard_bytes(emu.layout, rank, optimizer=emu.optimizer)
    free = min(int(usable) - held[endpoint] for endpoint in ends)
    return min(config.policy.bucket, max(free // 2, LEAST_SYNC_BUCKET))
