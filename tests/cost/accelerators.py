"""Models and executions that the tests of the accelerator model share."""

from __future__ import annotations

from typing import Any

from nereus.cost.execution import Execution
from nereus.cost.layer import Architecture
from nereus.spec.decoder import Decoder, Experts
from nereus.spec.hardware import ACCELERATORS, Hardware

LLAMA_8B = Architecture(
    Decoder(hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=14_336, vocab_size=128_256)
)
"""Llama-3.1-8B, from its published config.json."""

MIXTRAL = Architecture(
    Decoder(
        family="mixtral",
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        ffn_size=14_336,
        vocab_size=32_000,
        experts=Experts(count=8, active=2, ffn_size=14_336, layers=frozenset(range(32))),
    )
)
"""Mixtral-8x7B, from its published config.json."""

GPT_175B = Architecture(
    Decoder(
        family="gpt2",
        gated=False,
        hidden_size=12_288,
        num_layers=96,
        num_heads=96,
        num_kv_heads=96,
        head_dim=128,
        ffn_size=49_152,
        vocab_size=51_200,
        tied=True,
    )
)
"""GPT-3 as Megatron-LM's papers train it."""


def execution(**changes: Any) -> Execution:
    """An execution on H100 nodes of eight; what is not named is one, 4096 tokens, 64 sequences."""
    defaults: dict[str, Any] = {"hardware": Hardware(ACCELERATORS["H100"]), "sequences": 64, "tokens": 4096}
    return Execution(**{**defaults, **changes})
