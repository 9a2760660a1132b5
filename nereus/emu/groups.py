"""Which endpoints of a model-stage compute together: the TP, PP and DP groups of its EMUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId

Members = tuple[EndpointId, ...]


@dataclass(frozen=True, slots=True)
class RankGroups:
    """The groups of one rank of one EMU, each in rank order; a group of one is the rank alone."""

    tp: Members
    pp: Members
    dp: Members
    model: Members
    """All ranks of the EMU: the global gradient norm is summed here."""
    ends: Members
    """First and last pipeline rank of this TP position: tied embeddings are summed here."""
    kv: Members
    """TP neighbours that hold the same kv heads, when there are fewer kv heads than TP ranks."""

    def all(self) -> tuple[Members, ...]:
        """The distinct groups of more than one member, sorted."""
        groups = {self.tp, self.pp, self.dp, self.model, self.ends, self.kv}
        return tuple(sorted(group for group in groups if len(group) > 1))


def rank_groups(emus: tuple[Emu, ...], index: int, rank: int, num_kv_heads: int) -> RankGroups:
    """The groups of `rank` of `emus[index]`; the EMUs are the DP replicas of one model-stage."""
    emu, layout = emus[index], emus[index].layout
    at = layout.coordinate(rank)
    tp = tuple(emu.endpoints[layout.rank(pp=at.pp, tp=t)] for t in range(layout.tp))
    pp = tuple(emu.endpoints[layout.rank(pp=p, tp=at.tp)] for p in range(layout.pp))
    sharing = [t for t in range(layout.tp) if t * num_kv_heads // layout.tp == at.tp * num_kv_heads // layout.tp]
    return RankGroups(
        tp=tp,
        pp=pp,
        dp=tuple(replica.endpoints[rank] for replica in emus),
        model=emu.endpoints,
        ends=(pp[0], pp[-1]) if layout.pp > 1 and at.pp in (0, layout.pp - 1) else (emu.endpoints[rank],),
        kv=tuple(tp[t] for t in sharing) if layout.tp > num_kv_heads else (emu.endpoints[rank],),
    )


def compute_groups(emus: Iterable[Emu], num_kv_heads: int) -> frozenset[Members]:
    """All groups of more than one member that computing on these units needs; the replicas of a model-stage are in order."""
    collection = tuple(emus)
    groups: set[Members] = set()
    for emu in collection:
        replicas = tuple(other for other in collection if other.stage == emu.stage)
        for rank in range(emu.layout.size):
            groups |= set(rank_groups(replicas, replicas.index(emu), rank, num_kv_heads).all())
    return frozenset(groups)
