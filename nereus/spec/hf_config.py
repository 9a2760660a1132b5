"""An HF `config.json` as a `Decoder`, or as one JobFileError that names the field, its value and what is supported.

    config.json -> model_type -> Family (families.py) -> the fields that tensors depend on -> Decoder, dtype

Fields that no tensor depends on are not looked at. Quantised checkpoints and models with more than a decoder are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nereus.errors import JobFileError
from nereus.spec.decoder import Decoder, Experts
from nereus.spec.families import FAMILIES, Bias, Family
from nereus.spec.problems import Problem, one_of, refuse

DTYPES = ("bfloat16", "float16", "float32")
"""What parameters may be in; HF's default, for a file that does not say, is float32."""


class HfModel(NamedTuple):
    """What a config.json says about a model's state."""

    decoder: Decoder
    dtype: str
    """Of the parameters."""


def is_hf_config(data: object) -> bool:
    """Whether plain data is a config.json rather than a job file: a job has neither of these fields."""
    return isinstance(data, Mapping) and not {"model_type", "architectures"}.isdisjoint(data)


def parse_hf_config(data: object, name: str) -> HfModel:
    """The model that a config.json describes; `name` is what messages call the file. Raises JobFileError."""
    if not isinstance(data, Mapping):
        raise refuse([Problem(name, data, "it must be the object of an HF config.json")])
    model_type = data.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or not isinstance(model_type, str):
        supported = f"the tensors of this model_type are not known; supported are {', '.join(FAMILIES)}"
        raise refuse([Problem(f"{name}: model_type", model_type, supported)])
    fields = _Fields(data, name, family.aliases)
    _check_support(fields, family)
    return HfModel(_decoder(fields, model_type, family), _dtype(fields))


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of a config, each read with a check of its type."""

    data: Mapping[str, Any]
    name: str
    aliases: Mapping[str, str]

    def has(self, field: str) -> bool:
        """Whether there is a value; HF writes null for a field that is left to its default."""
        return self.data.get(self.aliases.get(field, field)) is not None

    def whole(self, field: str, default: int | None = None) -> int:
        """A whole number of 1 or more."""
        name = self.aliases.get(field, field)
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.problem(name, None, "the field is required")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**63:
            raise self.problem(name, value, "it must be a whole number of 1 or more")
        return value

    def flag(self, field: str, *, default: bool) -> bool:
        """True or false."""
        value = self.data.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.problem(field, value, "it must be true or false")
        return value

    def layers(self, field: str) -> tuple[int, ...]:
        """Numbers of layers; none by default."""
        value = self.data.get(field) or []
        if not isinstance(value, list) or not all(isinstance(layer, int) for layer in value):
            raise self.problem(field, value, "it must be a list of layers")
        return tuple(value)

    def problem(self, field: str, value: object, allowed: str) -> JobFileError:
        """The error for one field."""
        return refuse([Problem(f"{self.name}: {field}", value, allowed)])


def _check_support(fields: _Fields, family: Family) -> None:
    """What would change the tensors and is not supported."""
    architectures = fields.data.get("architectures")
    if architectures is not None and architectures != [family.architecture]:
        only = f"supported is ['{family.architecture}']: other heads have other tensors"
        raise fields.problem("architectures", architectures, only)
    quantised = fields.data.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        advice = "quantised tensors are not moved; take the config of the unquantised checkpoint"
        raise fields.problem("quantization_config.quant_method", method, advice)


def _dtype(fields: _Fields) -> str:
    """Newer files call it dtype, older ones torch_dtype."""
    field = "dtype" if fields.has("dtype") else "torch_dtype"
    value = fields.data.get(field)
    if value is None:
        return "float32"
    if value not in DTYPES:
        raise fields.problem(field, value, f"it must be {one_of(DTYPES)}")
    return str(value)


def _decoder(fields: _Fields, model_type: str, family: Family) -> Decoder:
    hidden, num_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    num_layers = fields.whole("num_hidden_layers")
    every_bias = family.bias is Bias.ALWAYS or _declares(fields, "attention_bias", family.bias, default=family.declared_bias)
    return Decoder(
        family=model_type,
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_kv_heads(fields, family, num_heads),
        head_dim=_head_dim(fields, family, hidden, num_heads),
        ffn_size=fields.whole("intermediate_size", family.ffn_factor and family.ffn_factor * hidden),
        vocab_size=fields.whole("vocab_size"),
        tied=fields.flag("tie_word_embeddings", default=family.tied),
        norms=family.norms,
        qk_norm=family.qk_norm,
        qkv_bias=every_bias or family.bias is Bias.QKV,
        out_bias=every_bias,
        mlp_bias=family.mlp_bias is Bias.ALWAYS or _declares(fields, "mlp_bias", family.mlp_bias, default=False),
        sinks=family.sinks,
        experts=_experts(fields, family, num_layers),
        num_positions=fields.whole("max_position_embeddings") if family.learnt_positions else 0,
    )


def _declares(fields: _Fields, field: str, bias: Bias, *, default: bool) -> bool:
    return bias is Bias.DECLARED and fields.flag(field, default=default)


def _kv_heads(fields: _Fields, family: Family, num_heads: int) -> int:
    """A null is HF's word for as many as query heads; a field that is not there has the family's default."""
    left_out = "num_key_value_heads" not in fields.data and family.num_kv_heads is not None
    found = fields.whole("num_key_value_heads", family.num_kv_heads if left_out else num_heads)
    if num_heads % found:
        raise fields.problem("num_key_value_heads", found, f"it must divide num_attention_heads, which is {num_heads}")
    return found


def _head_dim(fields: _Fields, family: Family, hidden: int, num_heads: int) -> int:
    default = family.head_dim
    if default is None and not fields.has("head_dim") and hidden % num_heads:
        field = fields.aliases.get("num_attention_heads", "num_attention_heads")
        raise fields.problem(field, num_heads, f"without head_dim it must divide the hidden size, which is {hidden}")
    return fields.whole("head_dim", default or max(hidden // num_heads, 1))


def _experts(fields: _Fields, family: Family, num_layers: int) -> Experts | None:
    known = family.experts
    if known is None:
        return None
    count = next((name for name in known.count if fields.has(name)), known.count[0])
    layers = frozenset(range(num_layers))
    if known.chosen_layers:
        every, without = fields.whole("decoder_sparse_step", 1), fields.layers("mlp_only_layers")
        layers = frozenset(layer for layer in layers if (layer + 1) % every == 0 and layer not in without)
    return Experts(count=fields.whole(count), ffn_size=fields.whole(known.ffn_size), layers=layers)
