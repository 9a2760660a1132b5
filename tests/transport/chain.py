"""A walk through layouts that covers what a transition can be: which step teaches something new is chosen greedily.

features of a step: its source and its target (tp, pp, dp), which of the three degrees grow, stay or shrink,
and in which form the optimizer state stands before and after it, in each way of carrying it out
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from random import Random
from typing import NamedTuple

from nereus.transition.ops import BUCKET_BYTES
from tests.builders import degrees, make_layout
from tests.transport.carrying import Mode

START = "tp2 pp2 dp2"
LENGTH = 72
"""Steps after which every feature was seen, which a test checks."""

MAX_DEVICES, MAX_PP = 8, 6
SMALL_BYTES = 1 << 13
"""A bucket that makes several messages and several buckets of every model here."""

MODES = tuple(
    Mode(fuse, stream, size)
    for fuse in (True, False)
    for stream, size in ((False, BUCKET_BYTES), (False, SMALL_BYTES), (True, SMALL_BYTES))
)

Degrees = tuple[int, int, int]


class Step(NamedTuple):
    """One transition of the walk."""

    text: str
    devices: tuple[int, ...]
    mode: Mode


def triple(text: str) -> Degrees:
    """tp, pp, and how many ranks have the same part of the model's layers and heads: replicas or their shards."""
    found = degrees(text)
    return found["tp"], found["pp"], found["fsdp"] * found["dp"]


def form(text: str) -> str:
    """How the state is shared among ranks that would else be replicas."""
    found = degrees(text)
    return "zero1" if found["zero"] else "fsdp" if found["fsdp"] > 1 else "plain"


@lru_cache(maxsize=1)
def candidates() -> tuple[str, ...]:
    """Every layout over at most eight devices, in every form."""
    texts = []
    for tp, pp, fsdp, dp in product(range(1, MAX_DEVICES + 1), repeat=4):
        if tp * pp * fsdp * dp <= MAX_DEVICES and pp <= MAX_PP:
            texts.append(f"tp{tp} pp{pp} fsdp{fsdp} dp{dp}")
            if dp > 1:
                texts.append(f"tp{tp} pp{pp} fsdp{fsdp} dp{dp} zero1")
    return tuple(texts)


def directions(source: str, target: str) -> Degrees:
    """-1, 0 or 1 for each degree."""
    a, b, c = ((after > before) - (after < before) for before, after in zip(triple(source), triple(target), strict=True))
    return a, b, c


def features(source: str, target: str, mode: Mode) -> frozenset[object]:
    return frozenset(
        {
            ("source", triple(source)),
            ("target", triple(target)),
            directions(source, target),
            (form(source), form(target), mode),
        }
    )


@lru_cache(maxsize=1)
def walk() -> tuple[Step, ...]:
    """Steps from START on, each on some of eight devices."""
    random, seen, at = Random(0), set[object](), START
    steps = []
    for _ in range(LENGTH):
        choices = [(text, mode) for text in candidates() for mode in MODES if text != at]
        random.shuffle(choices)
        text, mode = max(choices, key=lambda choice: len(features(at, *choice) - seen))
        seen |= features(at, text, mode)
        size = make_layout(text).size * degrees(text)["dp"]
        steps.append(Step(text, tuple(sorted(random.sample(range(MAX_DEVICES), size))), mode))
        at = text
    return tuple(steps)


def seen_features(steps: tuple[Step, ...]) -> frozenset[object]:
    """All features of a walk."""
    texts = (START, *(step.text for step in steps))
    found = (features(a, step.text, step.mode) for a, step in zip(texts, steps, strict=False))
    return frozenset().union(*found)


def possible_features() -> Iterator[object]:
    """Every feature that some step has."""
    forms, shapes = sorted({form(text) for text in candidates()}), sorted({triple(text) for text in candidates()})
    yield from (("source", shape) for shape in shapes)
    yield from (("target", shape) for shape in shapes)
    yield from ({directions(a, b) for a in candidates() for b in candidates() if a != b})
    yield from ((a, b, mode) for a in forms for b in forms for mode in MODES)
