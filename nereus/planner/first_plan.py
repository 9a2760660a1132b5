"""What the first plan of an outline's job is looked for with, before and after a peak of memory was measured (decision 032).

pricing that is known -> pricings, in the order in which a plan is looked for by them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nereus.planner.outline_pricing import UNMEASURED_SCALE, OutlinePricing


def first_pricings(known: OutlinePricing) -> Iterator[OutlinePricing]:
    """What a job's first plan is looked for with: what is known, and where nothing fits by that, what is counted.

    Once a peak was measured, nothing is looked for that does not fit by it.
    """
    yield known
    if known.memory_scale == UNMEASURED_SCALE:
        yield replace(known, memory_scale=1.0)
