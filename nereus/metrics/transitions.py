"""The transitions that were carried out, and those that ended early."""

from __future__ import annotations

from nereus.control.phases import End
from nereus.metrics.exposition import Described, Source, one
from nereus.runtime.tallies import ONE_NODE, SEVERAL_NODES

PATHS = (ONE_NODE, SEVERAL_NODES)
PRIMITIVES = ("Split", "Merge", "Extend", "Destroy")

OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Transitions",
        "counter",
        "nereus_transitions_total",
        "Transitions that were carried out.",
        one(lambda s: s.tallies.transitions),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transitions_interrupted_total",
        "Transitions that ended before their commit, by what they came to.",
        lambda s: [((end,), s.tallies.interrupted[end]) for end in map(str, End)],
        ("end",),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transition_primitives_total",
        "Primitives that were carried out.",
        lambda s: [((name,), s.tallies.primitives[name]) for name in PRIMITIVES],
        ("primitive",),
    ),
    Described(
        "Transitions",
        "summary",
        "nereus_transition_seconds",
        "Set-up, movement and commit of each transition.",
        one(lambda s: (s.tallies.transitions, s.tallies.transition_s)),
    ),
    Described(
        "Transitions",
        "summary",
        "nereus_transition_stall_seconds",
        "How long the loop waited for each transition: `nereus_transition_seconds`, and the digests.",
        one(lambda s: (s.tallies.transitions, s.tallies.stall_s)),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transition_setup_seconds_total",
        "Part of `nereus_transition_seconds`: making communicators.",
        one(lambda s: s.tallies.setup_s),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transition_moved_bytes_total",
        "Bytes that transitions moved between endpoints.",
        one(lambda s: s.tallies.bytes_moved),
    ),
    Described(
        "Transitions",
        "counter",
        "nereus_transition_operation_bytes_total",
        "Bytes of the operations of transitions, by whether all endpoints of an operation are on one node.",
        lambda s: [((path,), s.tallies.op_bytes[path]) for path in PATHS],
        ("path",),
    ),
    Described(
        "Transitions",
        "gauge",
        "nereus_transition_peak_bytes",
        "Highest use of any device's memory in the last transition; 0 before the first.",
        one(lambda s: s.projection.transition_peak_bytes or 0),
    ),
)
