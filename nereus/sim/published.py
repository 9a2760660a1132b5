"""The figures that worlds are drawn around: response surfaces that were fitted on published measurements.

All fits are least squares of the logarithm of seconds with a soft L1 loss and a weak prior, over the ratios of running.py
and decoding.py; docs/simulator.md says how, and on which rows. Errors are those of the fit itself, on the rows that it
saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nereus.sim.noise import drawn
from nereus.sim.surface import Ratio, Slowdown, Surface
from nereus.spec.hardware import LinkClass


@dataclass(frozen=True, slots=True)
class Published:
    """A surface, where it comes from, and how far it is off."""

    surface: Surface
    source: str
    error: float
    """Median relative error of its seconds."""


def _surface(base: float, sharpness: float, bubble: float, **terms: tuple[float, float]) -> Surface:
    return Surface(base, sharpness, {Ratio(name): Slowdown(*term) for name, term in terms.items()}, bubble)


TRAINING: Mapping[str, Published] = {
    "H100": Published(
        _surface(
            1.75,
            1.72,
            0.85,
            short=(0.088, 0.79),
            launch=(2.316, 1.0),
            span=(14.03, 0.67),
            replicas=(4.314, 0.50),
            optimizer=(0.223, 0.99),
            narrow=(0.035, 1.39),
            tp_node=(0.757, 0.81),
            tp_network=(0.161, 0.58),
            hops=(0.247, 0.56),
        ),
        "HF Ultra-Scale Playbook sweep, 1B/3B/8B on 8 to 64 H100 over EFA (653 runs that used under 85 % of the memory)",
        0.083,
    ),
    "A100-80GB": Published(
        _surface(
            1.562,
            2.10,
            0.92,
            short=(0.125, 0.50),
            launch=(1.756, 1.0),
            span=(0.223, 1.0),
            replicas=(0.225, 0.89),
            optimizer=(0.222, 1.0),
            narrow=(0.358, 0.88),
            tp_node=(0.235, 1.50),
            tp_network=(0.185, 0.50),
            hops=(0.208, 1.16),
        ),
        "vTrain's measurements, GPT shapes on 2 to 8 A100 (1,440 runs) and 3.6B and 18.4B on 64 and 256 (41 runs)",
        0.047,
    ),
}
"""Training and scoring. The error counts configurations within twice the time of the best one for the same model and
devices."""

DECODING: Mapping[str, Published] = {
    "H100": Published(
        _surface(
            1.10,
            1.20,
            1.0,
            keys=(1.028, 0.92),
            products=(0.854, 1.0),
            sequences=(0.239, 0.77),
            launch=(1.198, 1.0),
            tp_node=(2.113, 1.13),
            tp_network=(2.113, 1.13),
            hops=(1.0, 1.0),
        ),
        "TensorRT-LLM overview, Llama 8B to 405B in FP8, TP 1 to 8 (73 loads); generation of three verl runs (188 steps)",
        0.032,
    ),
    "A100-80GB": Published(
        _surface(
            1.104,
            1.0,
            1.0,
            keys=(1.061, 1.0),
            products=(1.673, 1.0),
            sequences=(0.370, 0.98),
            launch=(1.787, 1.0),
            tp_node=(4.355, 1.30),
            tp_network=(4.355, 1.30),
            hops=(1.0, 1.0),
        ),
        "Splitwise's measurements, Llama-2-70B with TP 2 to 8 and BLOOM-176B with TP 8 (76 batches)",
        0.027,
    ),
}
"""Iterations of generation. Nobody published TP over nodes or pipelines while decoding: the network has the scale of the
node's links over its own rate and latency, and a hop costs what it takes."""

CARRIED = {
    "V100": "A100-80GB",
    "A100-40GB": "A100-80GB",
    "MI250X": "A100-80GB",
    "L40S": "A100-80GB",
    "H200": "H100",
    "B200": "H100",
    "GH200": "H100",
    "MI300X": "H100",
}
"""Whose surface a kind without measurements has, over its own datasheet: that of its generation."""

SPREAD, CARRIED_SPREAD = 0.1, 0.2
"""Standard deviation of the log of each scale between worlds, and of a kind whose surface is carried: efficiencies that were
fitted on one cluster were off by a quarter on another."""

RL_SLOWDOWN, RL_SPREAD = 1.5, 0.2
"""Scoring and updating inside an RL framework over the same in a training run, by tokens, and its spread between worlds.

Source: slopes of update and scoring seconds against the surface's in five runs of verl (SofT-GRPO): 0.7 to 6.0, median
1.46 and 1.50. Their intercepts, 40 to 60 % of the time, are offloads to the host, which nothing here does."""

SEND_SHARE: Mapping[LinkClass, float] = {LinkClass.NODE: 0.78, LinkClass.NETWORK: 0.47}
"""Of a link's datasheet rate that a large send reaches: H100 0.80 and 0.68, A100 0.76 and 0.32 (Vidur's profiling,
messages up to 64 MB, 30 sizes each, off by 1 to 2 %); here the geometric mean."""

SEND_LATENCY_S: Mapping[LinkClass, float] = {LinkClass.NODE: 1.2e-5, LinkClass.NETWORK: 2.1e-5}
"""Seconds of the smallest send of the same profiling: 8 and 17 microseconds in a node, 18 and 24 between nodes."""

SYNC_SHARE, SYNC_FIXED_S = 0.33, 0.05
"""Of the slowest link's rate at which the whole model passes in a weight sync, whatever the number of devices.

Source: verl's weight syncs on H20 with a checkpoint engine: 30B in 4.38 s to 16 devices, 235B in 23.7 s to 64 (28 and 40
% of 400 Gb/s), 7B in 0.12 s inside a node (28 % of 450 GB/s)."""

ROUGHNESS = 0.03
"""Standard deviation of the log of what a model-stage's layout adds to any surface: kernels that happen to suit a shape.
About two fifths of the residual of the training fits."""


def world_surface(kinds: Mapping[str, Published], kind: str, seed: int, name: str) -> Surface:
    """The surface of a kind in one world: the published one with every scale drawn anew around it."""
    source = CARRIED.get(kind, kind)
    spread = SPREAD if source == kind else CARRIED_SPREAD
    found = kinds[source].surface
    terms = {
        ratio: replace(term, scale=term.scale * drawn(seed, f"{name} {kind} {ratio}", spread))
        for ratio, term in found.terms.items()
    }
    return replace(found, base=max(found.base * drawn(seed, f"{name} {kind}", spread / 2), 1.0), terms=terms)
