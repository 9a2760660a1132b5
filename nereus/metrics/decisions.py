"""What was decided on candidate plans."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Source
from nereus.policy.admission import Code

OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Decisions",
        "counter",
        "nereus_decisions_total",
        "Candidate plans that were judged, by verdict.",
        lambda s: [((code.value,), s.tallies.decisions[code.value]) for code in Code],
        ("code",),
    ),
)
