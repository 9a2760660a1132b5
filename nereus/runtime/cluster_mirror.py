"""What looks at runners say that the records do not: a job that was started, one that ended, a device that was left.

    Grants + Look of each runner + offers that were sent -> Launched, Ended, Freed, Priced

Everything is read off what is seen, and off the offers that were heard: a controller that was restarted sees the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nereus.control.offer import Offer
from nereus.policy.grants import Claim, Ended, Freed, Grants, Launched, Priced, Record
from nereus.runtime.cluster_ports import Look

DIED = "the process of its runner died, and all of the job's with it; run it again with --resume if it has a checkpoint"

CHANGED = 0.1
"""Relative change of a predicted step time from which it is recorded: below it no decision turns."""

Looks = Mapping[str, Look | None]
"""By job; None where it has no runner, and never had one that told anything."""


def kept(before: Looks, now: Looks, grants: Grants) -> dict[str, Look | None]:
    """The looks, with what was told before and is not told now: how far a job came that is over, and how it ended.

    An end that is recorded stays what it was, also where its runner dies before it is forgotten.
    """
    found: dict[str, Look | None] = dict(before)
    for job, look in now.items():
        last = before.get(job)
        if look is not None and last is not None:
            is_over = grants.claims[job].ended is not None
            outcome = last.outcome if is_over and last.outcome is not None else look.outcome or last.outcome
            look = replace(look, holdings=look.holdings or last.holdings, outcome=outcome)
        found[job] = look if look is not None or last is None else last
    return found


def begun(grants: Grants, looks: Looks) -> list[Record]:
    """The jobs whose runner is there although that is not recorded: it was started by a controller that then died."""
    granted = [claim for claim in grants.claims.values() if claim.is_running and not claim.is_launched]
    return [Launched(job=claim.told.job) for claim in granted if looks.get(claim.told.job) is not None]


def happened(grants: Grants, looks: Looks, sent: Mapping[str, Offer]) -> list[Record]:
    """What runners tell of jobs that were started: ends, devices that were left, other step times."""
    found: list[Record] = []
    for claim in grants.claims.values():
        job = claim.told.job
        if job not in looks or not claim.is_launched or claim.ended is not None:
            continue
        look = looks[job]
        if look is None:
            found.append(Ended(job=job, state="failed", reason=DIED))
        elif look.outcome is not None:
            found.append(Ended(job=job, state=look.outcome.state, reason=look.outcome.reason))
        else:
            found += _changed(grants, claim, look, sent.get(job))
    return found


def _changed(grants: Grants, claim: Claim, look: Look, sent: Offer | None) -> list[Record]:
    """Of a job that runs."""
    job, found = claim.told.job, list[Record]()
    if look.holdings is not None and sent is not None and look.holdings.heard == sent.number:
        has, notices = look.holdings.seats, grants.notices(claim)
        left = tuple(sorted(place for place in notices if place in sent.leaving and place not in has))
        if left:
            found.append(Freed(job=job, places=left))
    if look.seconds and differs(claim.seconds, look.seconds):
        found.append(Priced(job=job, seconds=look.seconds))
    return found


def differs(before: Mapping[int, float], now: Mapping[int, float]) -> bool:
    """Whether predictions changed by more than CHANGED."""
    return before.keys() != now.keys() or any(abs(now[n] - before[n]) > CHANGED * before[n] for n in now)
