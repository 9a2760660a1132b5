"""How well the cost model has predicted what came."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Source, one

OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Cost model",
        "summary",
        "nereus_cost_transition_predicted_seconds",
        "What was predicted for the transitions that were carried out, scripted ones included.",
        one(lambda s: (s.tallies.transitions, s.tallies.predicted_s)),
    ),
    Described(
        "Cost model",
        "summary",
        "nereus_cost_transition_measured_seconds",
        "What the same transitions came to: the ratio of the sums is the bias of the prediction.",
        one(lambda s: (s.tallies.transitions, s.tallies.transition_s)),
    ),
    Described(
        "Cost model",
        "counter",
        "nereus_late_seconds_total",
        "By how much the paced segments of all emulated devices took longer than declared.",
        one(lambda s: s.tallies.late_s),
    ),
    Described(
        "Cost model",
        "counter",
        "nereus_declared_seconds_total",
        "What these segments should have taken: late over declared is the lateness.",
        one(lambda s: s.tallies.declared_s),
    ),
)
