"""Generated changes of several model-stages on a pool that is nearly full: random plans before and after, in whole blocks.

    seed -> Instance: a Change, the EMUs that stand, usable bytes, and the model-stages that are streamed from the start

Roles share devices with one another, and exclude each other within a role, or, in four instances of ten, all exclude all.
The capacity is 1.00 to 1.25 times what the plans and each model-stage's own change need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu, phi
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import Layout
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.transition.dag import Change
from nereus.transition.feasibility import check_memory
from nereus.transition.memory import Held
from nereus.transition.ops import Transition
from nereus.transition.streaming import streamed

NODE = 8
MB = 1_000_000
BUCKET = 256 * MB
STAGES = (
    *("actor_generation", "reference_inference", "reward_inference"),
    *("critic_inference", "actor_training", "critic_training"),
)
LAYERS = {"even": 8, "uneven": 10}
Blocks = dict[str, list[tuple[int, ...]]]


@dataclass(frozen=True)
class Instance:
    """One change, and what it has to fit in."""

    seed: int
    change: Change
    standing: tuple[Emu, ...]
    streams: frozenset[str]
    slack: float
    """Capacity over what is needed at least."""

    @property
    def num_devices(self) -> int:
        return len(self.change.endpoint_of)


def generated(seed: int, sizes: tuple[int, ...] = (8, 16, 32, 64)) -> Instance:
    """The instance of a seed, on a pool of one of these sizes."""
    random = Random(seed)
    while True:
        instance = _drawn(random, seed, random.choice(sizes))
        if instance is not None:
            return instance


def _drawn(random: Random, seed: int, num_devices: int) -> Instance | None:
    stages = sorted(random.sample(STAGES, random.randint(2, len(STAGES))), key=STAGES.index)
    apart = random.random() < 0.4
    group = {stage: "all" if apart else stage.rpartition("_")[2] for stage in stages}
    pools = random.choice(
        [(num_devices, num_devices)] * 3 + [(num_devices, num_devices // 2), (num_devices // 2, num_devices)]
    )
    size_mb = {s: random.choice([16_000, 28_000]) * (8 if s.endswith("training") else 1) for s in stages}

    def layout(stage: str) -> Layout | None:
        most = min(pools) // sum(group[other] == group[stage] for other in stages)
        able = [
            Layout(tp, pp)
            for tp in (1, 2, 4, 8)
            for pp in (1, 2, 4)
            if tp * pp <= most and size_mb[stage] // (tp * pp) <= 64_000
        ]
        return random.choice(able) if able else None

    before = {stage: layout(stage) for stage in stages}
    after = {stage: before[stage] if random.random() < 0.5 else layout(stage) for stage in stages}
    if None in before.values() or None in after.values():
        return None
    first = _placed(random, before, group, pools[0], {})
    held = {stage: {d for block in blocks for d in block} for stage, blocks in (first or {}).items()}
    second = first and _placed(random, after, group, pools[1], held)
    if not first or not second:
        return None
    states = {stage: _state(size_mb[stage], random.choice(list(LAYERS.values()))) for stage in stages}
    return _instance(random, seed, num_devices, states, _plans(before, first), _plans(after, second), group)


def _placed(
    random: Random,
    layouts: Mapping[str, Layout | None],
    group: Mapping[str, str],
    pool: int,
    held: Mapping[str, set[int]],
) -> Blocks | None:
    """Aligned blocks of devices for each model-stage, disjoint within a group, until the pool is nearly full."""
    free = {name: set(range(pool)) for name in group.values()}
    out: Blocks = {stage: [] for stage in layouts}
    size = {stage: layout.size for stage, layout in layouts.items() if layout is not None}
    able = {stage: [tuple(range(i, i + size[stage])) for i in range(0, pool, size[stage])] for stage in layouts}

    def put(stage: str) -> bool:
        open_ = [block for block in able[stage] if len(block) == size[stage] and free[group[stage]].issuperset(block)]
        if not open_:
            return False
        near = random.random() < 0.5
        block = max(open_, key=lambda b: len(held.get(stage, set()).intersection(b))) if near else random.choice(open_)
        out[stage].append(block)
        free[group[stage]].difference_update(block)
        return True

    for stage in sorted(layouts, key=lambda s: -size[s]):
        if not put(stage):
            return None
    tries = min(4 * pool, 256)
    for _ in range(tries):
        if random.random() < 0.97:
            put(random.choice(list(layouts)))
    return out


def _plans(layouts: Mapping[str, Layout | None], blocks: Blocks) -> dict[str, StagePlan]:
    found: dict[str, StagePlan] = {}
    for stage, layout in layouts.items():
        assert layout is not None
        found[stage] = StagePlan(stage, layout, len(blocks[stage]), tuple(d for block in blocks[stage] for d in block))
    return found


def _state(size_mb: int, layers: int) -> StateSpec:
    """A model of so many megabytes: one tensor a layer, cut by rows."""
    rows = 80
    columns = size_mb * MB // (layers * rows * 4)
    tensors = tuple(
        CanonicalTensor(f"{i}.weight", Kind.PARAMETER, (rows, columns), "float32", Place.LAYER, i, 0, (Segment(rows),))
        for i in range(layers)
    )
    return StateSpec(tensors, layers)


def _instance(
    random: Random,
    seed: int,
    num_devices: int,
    states: Mapping[str, StateSpec],
    before: Mapping[str, StagePlan],
    after: Mapping[str, StagePlan],
    group: Mapping[str, str],
) -> Instance | None:
    endpoint_of = {device: f"d{device}.0" for device in range(num_devices)}
    current = {stage: phi(plan, endpoint_of, 0) for stage, plan in before.items()}
    changed = {
        stage: plan
        for stage, plan in after.items()
        if (plan.layout, set(plan.groups)) != (before[stage].layout, set(before[stage].groups))
    }
    if not changed:
        return None
    change = Change(
        current={stage: current[stage] for stage in changed},
        targets=changed,
        states=states,
        endpoint_of=endpoint_of,
        epoch=1,
        node_of={endpoint: device // NODE for device, endpoint in endpoint_of.items()},
        exclusive=_same(group),
        bucket_bytes=BUCKET,
        standing=tuple(emu for stage, emus in current.items() if stage not in changed for emu in emus),
    )
    standing = tuple(emu for emus in current.values() for emu in emus)
    streams = frozenset(stage for stage in changed if random.random() < 0.3)
    return Instance(seed, change, standing, streams, random.uniform(1.0, 1.25))


def _same(group: Mapping[str, str]) -> Callable[[str, str], bool]:
    return lambda a, b: group[a] == group[b]


def first_transition(instance: Instance) -> Transition:
    """The first way of the change, with the model-stages that are streams from the start. Raises LayoutError without one."""
    change = instance.change
    transition = next(change.transitions())
    return streamed(transition, instance.streams, instance.standing, change.states) if instance.streams else transition


def usable_bytes(instance: Instance, transition: Transition) -> int:
    """What the plans before and after need, and each model-stage's change on its own, times the instance's slack."""
    change = instance.change
    after = Held.of([*change.standing, *transition.result], change.states).used
    need = max(*Held.of(instance.standing, change.states).used.values(), *after.values())
    for stage in change.targets:
        ops = tuple(op for op in transition.ops if op.stage == stage)
        names = {op.id for op in ops}
        alone = replace(transition, ops=tuple(replace(o, after=tuple(n for n in o.after if n in names)) for o in ops))
        peaks = check_memory(alone, change.current[stage], change.states, float("inf")).peak_bytes
        need = max(need, *peaks.values())
    return int(need * instance.slack)
