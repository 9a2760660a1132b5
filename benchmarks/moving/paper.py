"""Planning alone, of a model too large to move here: rank assignment and transition DAG, in a process of their own.

The process can be ended when it takes too long, which planning itself cannot.
"""

from __future__ import annotations

import gc
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

from benchmarks.moving.live import plan_on_paper
from benchmarks.moving.shapes import Pair, Shape

CASES: dict[str, Pair] = {
    "llama-3.1-8b/16": (Shape(4, 2, 2), Shape(2, 2, 4)),
    "llama-3.1-8b/1024": (Shape(8, 8, 16), Shape(8, 4, 32)),
}
"""Name of the model and number of ranks: from which shape to which."""


def plan_ms(name: str, repeats: int, limit_s: float) -> float | None:
    """Median milliseconds to plan a case; None if not even once within the limit."""
    context = get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_plan, args=(theirs, CASES[name], repeats))
    process.start()
    theirs.close()
    found: list[float] = []
    try:
        while len(found) < repeats and ours.poll(limit_s):
            found.append(ours.recv())
    except EOFError:
        raise RuntimeError(f"planning {name} failed; its process wrote why") from None
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()
    return median(found) if found else None


def _plan(pipe: Connection, pair: Pair, repeats: int) -> None:
    gc.freeze()  # As the planner's process does.
    for _ in range(repeats):
        pipe.send(plan_on_paper(*pair))
