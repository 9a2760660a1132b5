"""Published training runs as the cost model sees them: an execution, a model, and what was measured.

Nothing is copied: the files lie where `--data` says. A column that a source leaves out is not guessed; what a framework does
by habit is its regime.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nereus.cost.execution import MEGATRON_2021, NANOTRON, Execution, Recompute
from nereus.cost.layer import Architecture
from nereus.spec.decoder import Decoder
from nereus.spec.hardware import ACCELERATORS, GIB, Hardware
from nereus.spec.policy import HEADROOM

SWEEP_TOKENS, SWEEP_SEQUENCES = 4096, 256

TIED_BELOW = 10_000
"""Models with a narrower MLP tie their embeddings in the sweep (nanotron, scripts/scaling_benchmarks.py)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration, and what it took."""

    group: tuple[str, ...]
    """Configurations that a choice is taken among."""
    name: tuple[int, ...]
    """tp, pp, dp, micro-batch, ZeRO stage."""
    run: Execution
    model: Architecture
    seconds: float | None
    """Of one step; None where it did not run."""
    peak_bytes: float | None = None
    rank: int | None = None
    """Pipeline rank whose peak that is; None: the fullest."""

    @property
    def ran(self) -> bool:
        return self.seconds is not None

    @property
    def usable_bytes(self) -> float:
        """Of the fullest device: the same headroom for everybody."""
        return (1 - HEADROOM) * self.run.hardware.accelerator.memory_bytes


def read(folder: Path, name: str) -> Iterator[dict[str, str]]:
    """The rows of a published table."""
    with (folder / "published" / f"{name}.csv").open(newline="") as file:
        yield from csv.DictReader(file)


def sweep_h100(folder: Path) -> list[Row]:
    """training_sweep_h100: of two runs of one configuration the better one, as some switches are hidden (hidden.py).

    Sequence parallelism is on, and the peak is that of the first pipeline rank: so nanotron's benchmark has it, whose rank 0
    writes the table.
    """
    rows: dict[tuple[object, ...], Row] = {}
    for line in read(folder, "training_sweep_h100"):
        tp, pp, dp, micro, zero = (int(line[key]) for key in ("tp", "pp", "dp", "microbatch", "zero_stage"))
        model = Architecture(_decoder(line, "llama", int(line["vocab"]), tied=int(line["ffn"]) < TIED_BELOW))
        hardware = Hardware(ACCELERATORS["H100"])
        run = Execution(
            hardware=hardware,
            tp=tp,
            pp=pp,
            dp=dp,
            micro_batch=micro,
            sequences=SWEEP_SEQUENCES,
            tokens=SWEEP_TOKENS,
            zero1=zero == 1,
            sequence_parallel=tp > 1,
            keeps_gathered=True,
            regime=NANOTRON,
        )
        ran = line["status"] == "success"
        seconds = float(line["iter_time_s_derived"]) if ran else None
        peak = float(line["peak_mem_gib"]) * GIB if ran else None
        row = Row((line["model"], line["gpus"]), (tp, pp, dp, micro, zero), run, model, seconds, peak, rank=0)
        known = rows.get((row.group, row.name))
        if known is None or (ran and (known.seconds is None or (seconds or 0) < known.seconds)):
            rows[row.group, row.name] = row
    return list(rows.values())


def gpt_a100(folder: Path, name: str) -> list[Row]:
    """training_layouts_a100_multi_node and _single_node: Megatron with full recomputation."""
    found = []
    for line in read(folder, name):
        tp, pp, dp, micro = (int(line[key]) for key in ("tp", "pp", "dp", "microbatch"))
        run = _megatron_a100(line)
        model = Architecture(_decoder(line, "gpt2", GPT_VOCABULARY, tied=True))
        found.append(Row((line["model"], line["gpus"]), (tp, pp, dp, micro, 0), run, model, float(line["iter_time_s"])))
    return found


GPT_VOCABULARY = 51_200
"""Megatron's padded GPT-2 vocabulary; the table does not name one."""


def topology_a100(folder: Path) -> list[Row]:
    """training_gpt_a100_topology: each section is a group; the runs before the sections state no batch and are left out.

    A row without shapes has the width and heads of the model that the source is about, and the layers that its number of
    parameters then gives.
    """
    found = []
    for line in read(folder, "training_gpt_a100_topology"):
        if not line["global_batch"] or line["section"] in ("fp16", "bf16"):
            continue
        tp, pp, dp, micro = (int(line[key]) for key in ("tp", "pp", "dp", "microbatch"))
        line = _with_shape(line)
        run = _megatron_a100(line, zero1=True)
        model = Architecture(_decoder(line, "gpt2", 250_880, tied=True))
        ran = line["status"] == "success"
        peak = float(line["peak_mem_GB_nvidia_smi"]) * 1e9 if line["peak_mem_GB_nvidia_smi"] else None
        key = (tp, pp, dp, micro, 1, *(int(line[field]) for field in ("layers", "hidden", "heads")))
        seconds = float(line["iter_time_s"]) if ran else None
        found.append(Row((line["section"],), key, run, model, seconds, peak))
    return found


def _megatron_a100(line: dict[str, str], *, zero1: bool = False) -> Execution:
    """Megatron with full recomputation on A100 nodes of eight."""
    return Execution(
        hardware=Hardware(ACCELERATORS["A100-80GB"]),
        tp=int(line["tp"]),
        pp=int(line["pp"]),
        dp=int(line["dp"]),
        micro_batch=int(line["microbatch"]),
        sequences=int(line["global_batch"]),
        tokens=int(line["seqlen"]),
        zero1=zero1,
        recompute=Recompute.FULL,
        regime=MEGATRON_2021,
    )


def _with_shape(line: dict[str, str]) -> dict[str, str]:
    """Layers from the number of parameters where a row has none: width 14400 and 96 heads, as the section's model has."""
    if line["layers"]:
        return line
    hidden = 14_400
    layers = round((float(line["params_b"]) * 1e9 - 250_880 * hidden) / (12 * hidden**2))
    return {**line, "layers": str(layers), "hidden": str(hidden), "heads": "96", "kv_heads": "96", "ffn": str(4 * hidden)}


def _decoder(line: dict[str, str], family: str, vocabulary: int, *, tied: bool) -> Decoder:
    heads, hidden = int(line["heads"]), int(line["hidden"])
    kv = line.get("kv_heads") or line["heads"]
    return Decoder(
        family=family,
        gated=family != "gpt2",
        hidden_size=hidden,
        num_layers=int(line["layers"]),
        num_heads=heads,
        num_kv_heads=int(re.sub(r"\D", "", kv)),
        head_dim=hidden // heads,
        ffn_size=int(line["ffn"]),
        vocab_size=vocabulary,
        tied=tied,
    )
