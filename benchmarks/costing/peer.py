"""llm-analysis beside the cost model, in an environment of its own that `--llm-analysis PYTHON` names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.costing.measured import Row
from benchmarks.costing.score import Guess
from nereus.cost.execution import Recompute

SCRIPT = Path(__file__).with_name("llm_analysis_peer.py")

CANNOT = (
    "llm-analysis 0.2.2 has one efficiency for all FLOPs and one per link, no launch floor, no pipeline bubble (added), "
    "no uneven pipeline, no time for DP or the optimizer, and cannot be calibrated; it is run at 0.5 of the FLOPs"
)
"""What it cannot express, for the report."""

NEVER_S = 1e9
"""What a configuration that it refuses is taken to need: the last choice."""


def guesses(python: Path, rows: Sequence[Row]) -> list[Guess]:
    """What llm-analysis says of these configurations."""
    asked = json.dumps([_described(row) for row in rows])
    done = subprocess.run([str(python), str(SCRIPT)], input=asked, capture_output=True, text=True, check=True)
    return [_guess(row, answer) for row, answer in zip(rows, json.loads(done.stdout), strict=True)]


def _guess(row: Row, answer: dict[str, Any]) -> Guess:
    if answer["seconds"] is None:
        return Guess(row, NEVER_S, False)
    return Guess(row, answer["seconds"], answer["peak_bytes"] <= row.usable_bytes, answer["peak_bytes"])


def _described(row: Row) -> dict[str, Any]:
    decoder, run = row.model.decoder, row.run
    return {
        "kind": run.hardware.accelerator.name,
        "layers": decoder.num_layers,
        "heads": decoder.num_heads,
        "kv_heads": decoder.num_kv_heads,
        "hidden": decoder.hidden_size,
        "ffn": decoder.ffn_size,
        "vocabulary": decoder.vocab_size,
        "gated": row.model.decoder.gated,
        "tokens": int(run.tokens),
        "tp": run.tp,
        "pp": run.pp,
        "dp": run.dp,
        "sequence_parallel": run.sequence_parallel,
        "micro_batch": run.micro_batch,
        "micro_batches": run.micro_batches,
        "zero1": run.zero1,
        "recompute": run.recompute is Recompute.FULL,
    }
