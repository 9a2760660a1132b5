"""Runs in an environment that has llm-analysis and not Nereus: configurations in, predictions out, as JSON lists.

    PYTHON llm_analysis_peer.py < configurations.json > predictions.json

Its own time of an iteration is FLOPs alone; its time of a forward knows TP collectives and memory, so seconds are three of
those (four with recomputation) per micro-batch, and the bubble of 1F1B, which it does not know. It refuses what it takes to
be out of memory; a device with more than any has makes it answer, and its own bytes say what fits.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from typing import Any

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import DtypeConfig, ModelConfig, ParallelismConfig, get_gpu_config_by_name

FLOPS_EFFICIENCY, LINK_EFFICIENCY = 0.5, 0.8
"""What a user would set: its own documentation says that Megatron-LM reached up to 0.6 of the FLOPs."""

ENOUGH_GB = 1e6

GPUS = {"H100": "h100-sxm-80gb", "A100-80GB": "a100-sxm-80gb"}


def predict(row: dict[str, Any]) -> dict[str, Any]:
    """Seconds and bytes of one configuration; nothing where llm-analysis refuses it."""
    model = ModelConfig(
        name="model",
        num_layers=row["layers"],
        n_head=row["heads"],
        hidden_dim=row["hidden"],
        vocab_size=row["vocabulary"],
        max_seq_len=row["tokens"],
        num_key_value_heads=row["kv_heads"],
        ffn_embed_dim=row["ffn"],
        expansion_ratio=row["ffn"] / row["hidden"],
    )
    sharding = ParallelismConfig(
        tp_size=row["tp"], pp_size=row["pp"], dp_size=row["dp"], sp_size=row["tp"] if row["sequence_parallel"] else 1
    )
    analysis = LLMAnalysis(
        model,
        replace(get_gpu_config_by_name(GPUS[row["kind"]]), mem_per_GPU_in_GB=ENOUGH_GB),
        DtypeConfig(),
        sharding,
        flops_efficiency=FLOPS_EFFICIENCY,
        intra_node_memory_efficiency=LINK_EFFICIENCY,
        inter_node_memory_efficiency=LINK_EFFICIENCY,
    )
    try:
        found = analysis.training(
            batch_size_per_gpu=row["micro_batch"],
            gradient_accumulation_steps=row["micro_batches"],
            seq_len=row["tokens"],
            activation_recomputation=ActivationRecomputation.FULL if row["recompute"] else ActivationRecomputation.NONE,
            ds_zero=DSZeRO.STAGE_1 if row["zero1"] else DSZeRO.NONE,
            mlp_gated_linear_units=row["gated"],
        )
    except Exception as error:
        return {"seconds": None, "peak_bytes": None, "why": str(error)[:200]}
    return {
        "seconds": (3 + row["recompute"]) * found["latency_fwd"] * (row["micro_batches"] + row["pp"] - 1),
        "peak_bytes": found["(weight+op_state+grad+act)_memory_per_gpu"],
    }


def main() -> None:
    """Predict what stdin lists."""
    logging.disable(logging.CRITICAL)
    out, sys.stdout = sys.stdout, sys.stderr
    json.dump([predict(row) for row in json.load(sys.stdin)], out)


if __name__ == "__main__":
    main()
