"""The paper's own cases of training Llama-3.1-8B (section 2, Fig. 4(b)): the best layouts at 16, 32 and 256 GPUs.

    python -m benchmarks.paper_layouts [--json]

The paper gives neither device nor micro-batch nor ZeRO stage. Here they are those of a public configuration as it stands,
and rates are the ones that ship: nothing was tuned for these cases.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nereus.cli.tables import show_table
from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.execution import MEGATRON, Execution
from nereus.cost.layer import Architecture
from nereus.cost.priors import shipped
from nereus.cost.volume import nothing
from nereus.spec.hardware import ACCELERATORS, GIB, Hardware
from nereus.spec.hf_config import parse_hf_config
from nereus.spec.reading import read_data

MODEL = Path(__file__).parents[1] / "examples" / "outlines" / "llama-3.1-8b.json"

SEQUENCES = 512
"""Of an update: `policy.train_global_batch_size` of NeMo-RL's GRPO configuration for Megatron,
examples/configs/grpo_math_1B_megatron.yaml at ddd4151fe1d2. From there too: `train_micro_batch_size: 4`, the distributed
optimizer (ZeRO-1), `activation_checkpointing: false` and `sequence_parallel: false`."""

MICRO_BATCH = 4
"""Sequences (see SEQUENCES)."""

DEGREES = (1, 2, 4, 8)
"""Of TP, inside a node, and of PP."""

SHOWN = 6
"""Layouts of a case in its table: all that the paper compares are among them."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal nodes and the length of all sequences."""

    kind: str
    devices_per_node: int
    num_devices: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.num_devices} {self.kind}, nodes of {self.devices_per_node}, {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to train, and what it takes."""

    dp: int
    tp: int
    pp: int
    micro_batches: int
    """Of each replica."""
    seconds: float
    """Of an update."""
    after_s: float
    """Of them, after the last micro-batch: replicas are synchronized, and the optimizer steps."""
    peak_bytes: float
    fits: bool
    """With 10 % of the memory left."""

    @property
    def bubble(self) -> float:
        """Share of the pipeline's slots in which a rank waits (1F1B)."""
        return (self.pp - 1) / (self.micro_batches + self.pp - 1)

    @property
    def degrees(self) -> tuple[int, int, int]:
        """As the paper writes them: (dp, tp, pp)."""
        return self.dp, self.tp, self.pp


CASES = (
    Pool("H100", 8, 16, 2048),
    Pool("H100", 8, 16, 4096),
    Pool("H100", 8, 32, 4096),
    Pool("H100", 8, 256, 4096),
    Pool("A100-40GB", 4, 32, 2048),
    Pool("A100-40GB", 4, 256, 2048),
)
"""The device of NeMo-RL's own recipe for this model (performance/grpo-llama3.1-8b-instruct-2n8g.yaml, two nodes of eight),
and a kind of which supercomputers have four to a node."""


def layouts(pool: Pool) -> tuple[Layout, ...]:
    """All layouts of a pool that the batch admits, fastest first."""
    hardware = Hardware(ACCELERATORS[pool.kind], pool.devices_per_node)
    model, architecture = AcceleratorModel(shipped(pool.kind)), _llama()
    found = []
    for tp in (degree for degree in DEGREES if degree <= pool.devices_per_node):
        for pp in DEGREES:
            dp, rest = divmod(pool.num_devices, tp * pp)
            if rest or dp < 1 or SEQUENCES % (dp * MICRO_BATCH):
                continue
            run = Execution(
                hardware=hardware,
                tp=tp,
                pp=pp,
                dp=dp,
                micro_batch=MICRO_BATCH,
                sequences=SEQUENCES,
                tokens=pool.tokens,
                zero1=True,
                regime=MEGATRON,
            )
            found.append(_priced(model, architecture, run))
    return tuple(sorted(found, key=lambda layout: layout.seconds))


def best(pool: Pool) -> Layout:
    """The fastest that fits."""
    return next(layout for layout in layouts(pool) if layout.fits)


def _llama() -> Architecture:
    return Architecture(parse_hf_config(read_data(MODEL, "model"), str(MODEL)).decoder)


def _priced(model: AcceleratorModel, architecture: Architecture, run: Execution) -> Layout:
    predicted = model.training(run, architecture)
    before = model.seconds(replace(predicted.work, serial=nothing()))
    return Layout(
        dp=run.dp,
        tp=run.tp,
        pp=run.pp,
        micro_batches=run.micro_batches,
        seconds=predicted.expected_s,
        after_s=predicted.seconds - before,
        peak_bytes=predicted.peak_bytes,
        fits=predicted.fits,
    )


def _row(layout: Layout) -> Sequence[str]:
    return (
        str(layout.degrees),
        f"{layout.seconds:.2f}",
        str(layout.micro_batches),
        f"{layout.bubble:.0%}",
        f"{layout.after_s:.2f}",
        f"{layout.peak_bytes / GIB:.1f}" + ("" if layout.fits else " does not fit"),
    )


def main(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False) -> None:
    """Rank the layouts of each case."""
    found = {str(pool): layouts(pool) for pool in CASES}
    if as_json:
        typer.echo(json.dumps({case: [asdict(one) for one in ranked] for case, ranked in found.items()}))
        return
    console = Console()
    headings = ("dp, tp, pp", "seconds", "micro-batches", "bubble", "after s", "GiB")
    for case, ranked in found.items():
        show_table(console, case, headings, [_row(one) for one in ranked[:SHOWN]])


if __name__ == "__main__":
    typer.run(main)
