"""The `Decoder` that a `config.json` describes: the fields of the file, and what its family has besides."""

from __future__ import annotations

from nereus.spec.decoder import Decoder, Experts, LatentAttention, Window
from nereus.spec.family import Bias, ExpertFields, ExpertLayers, Family, WindowFields
from nereus.spec.hf_fields import ConfigFields
from nereus.spec.problems import one_of

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
"""What `layer_types` can say of a layer."""

DENSE_FFN_SIZE = "intermediate_size_mlp"
"""Llama 4's name for the width of the layers without experts; `intermediate_size` is that of an expert."""


def read_decoder(fields: ConfigFields, model_type: str, family: Family) -> Decoder:
    """The decoder. Raises JobFileError for a field that cannot be read."""
    hidden, num_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    num_layers = fields.whole("num_hidden_layers")
    every_bias = family.bias is Bias.ALWAYS or _declares(fields, "attention_bias", family.bias, default=family.declared_bias)
    latent = _latent(fields) if family.latent else None
    experts = None if family.experts is None else _experts(fields, family.experts, num_layers)
    default_ffn = family.ffn_factor and family.ffn_factor * hidden
    ffn = DENSE_FFN_SIZE if experts is not None and fields.has(DENSE_FFN_SIZE) else "intermediate_size"
    return Decoder(
        family=model_type,
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads if latent else _kv_heads(fields, family, num_heads),
        head_dim=_latent_head_dim(fields) if latent else _head_dim(fields, family, hidden, num_heads),
        ffn_size=fields.whole(ffn, default_ffn),
        vocab_size=fields.whole("vocab_size"),
        tied=fields.flag("tie_word_embeddings", default=family.tied),
        norms=family.norms,
        norm_bias=family.norm_bias,
        final_norm=family.final_norm,
        qk_norm=family.qk_norm,
        qkv_bias=every_bias or family.bias is Bias.QKV,
        out_bias=every_bias,
        gated=family.gated,
        mlp_bias=family.mlp_bias is Bias.ALWAYS or _declares(fields, "mlp_bias", family.mlp_bias, default=False),
        head_bias=family.head_bias,
        sinks=family.sinks,
        latent=latent,
        experts=experts,
        window=None if family.window is None else _window(fields, family.window, num_layers),
        num_positions=fields.whole("max_position_embeddings") if family.learnt_positions else 0,
    )


def _declares(fields: ConfigFields, field: str, bias: Bias, *, default: bool) -> bool:
    return bias is Bias.DECLARED and fields.flag(field, default=default)


def _kv_heads(fields: ConfigFields, family: Family, num_heads: int) -> int:
    """A null is HF's word for as many as query heads; a field that is not there has the family's default."""
    field = "num_key_value_heads"
    left_out = not fields.declares(field) and family.num_kv_heads is not None
    found = fields.whole(field, family.num_kv_heads if left_out else num_heads)
    if num_heads % found:
        raise fields.problem(fields.called(field), found, f"it must divide num_attention_heads, which is {num_heads}")
    return found


def _head_dim(fields: ConfigFields, family: Family, hidden: int, num_heads: int) -> int:
    default = family.head_dim
    if default is None and not fields.has("head_dim") and hidden % num_heads:
        field = fields.called("num_attention_heads")
        raise fields.problem(field, num_heads, f"without head_dim it must divide the hidden size, which is {hidden}")
    return fields.whole("head_dim", default or max(hidden // num_heads, 1))


def _latent(fields: ConfigFields) -> LatentAttention:
    return LatentAttention(
        q_rank=fields.whole("q_lora_rank", 0, least=0),
        kv_rank=fields.whole("kv_lora_rank"),
        rope_dim=fields.whole("qk_rope_head_dim"),
        value_dim=fields.whole("v_head_dim"),
    )


def _latent_head_dim(fields: ConfigFields) -> int:
    """Of queries and keys: the part without a position, and the part with one."""
    return fields.whole("qk_nope_head_dim") + fields.whole("qk_rope_head_dim")


def _experts(fields: ConfigFields, known: ExpertFields, num_layers: int) -> Experts:
    count = fields.whole(next((name for name in known.count if fields.has(name)), known.count[0]))
    active = fields.whole("num_experts_per_tok", min(known.active, count))
    if active > count:
        raise fields.problem("num_experts_per_tok", active, f"it must be at most the {count} experts")
    width = fields.whole(known.ffn_size)
    shared = known.num_shared if known.shared is None else fields.whole(known.shared, 0, least=0)
    return Experts(
        count=count,
        ffn_size=width,
        active=active,
        layers=_expert_layers(fields, known.layers, num_layers),
        shared_ffn_size=shared * width,
        bias=known.bias,
        router_bias=known.router_bias,
    )


def _expert_layers(fields: ConfigFields, rule: ExpertLayers, num_layers: int) -> frozenset[int]:
    layers = range(num_layers)
    match rule:
        case ExpertLayers.ALL:
            return frozenset(layers)
        case ExpertLayers.CHOSEN:
            every, without = fields.whole("decoder_sparse_step", 1), fields.layers("mlp_only_layers")
            return frozenset(layer for layer in layers if (layer + 1) % every == 0 and layer not in without)
        case ExpertLayers.AFTER_DENSE:
            first, every = fields.whole("first_k_dense_replace", 0, least=0), fields.whole("moe_layer_freq", 1)
            return frozenset(layer for layer in layers if layer >= first and layer % every == 0)
        case ExpertLayers.INTERLEAVED:
            every = fields.whole("interleave_moe_layer_step", 1)
            return frozenset(layer for layer in layers if (layer + 1) % every == 0)


def _window(fields: ConfigFields, known: WindowFields, num_layers: int) -> Window | None:
    """The window, and the layers that have it."""
    if known.switched and not fields.flag("use_sliding_window", default=False):
        return None
    if known.size is None and not fields.has(known.field):
        return None
    if fields.declares(known.field) and not fields.has(known.field):
        return None
    size = fields.whole(known.field, known.size)
    layers = _window_layers(fields, known, num_layers)
    return Window(size=size, layers=layers, chunked=known.chunked) if layers else None


def _window_layers(fields: ConfigFields, known: WindowFields, num_layers: int) -> frozenset[int]:
    types = fields.data.get("layer_types")
    if types is not None:
        allowed = (FULL, CHUNKED if known.chunked else SLIDING)
        if not isinstance(types, list) or len(types) != num_layers or any(kind not in allowed for kind in types):
            raise fields.problem("layer_types", types, f"each of the {num_layers} layers must be {one_of(allowed)}")
        return frozenset(layer for layer, kind in enumerate(types) if kind != FULL)
    if known.switched:
        return frozenset(range(fields.whole("max_window_layers", 28, least=0), num_layers))
    every = known.full_every if known.full_every_field is None else fields.whole(known.full_every_field, known.full_every)
    return frozenset(layer for layer in range(num_layers) if not every or (layer + 1) % every)
