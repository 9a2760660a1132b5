"""What a model family can have that its `config.json` does not say: the vocabulary of the table in families.py.

Defaults are those of the family's configuration class in HF transformers, for files that leave a field out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nereus.spec.decoder import QkNorm


class Bias(StrEnum):
    """Which matrices of the attention, or of the MLP, have a bias."""

    NEVER = "never"
    ALWAYS = "always"
    DECLARED = "declared"
    """All, if `attention_bias` or `mlp_bias` says so."""
    QKV = "qkv"
    """Those of q, k and v; the output projection has none."""


class ExpertLayers(StrEnum):
    """How a family says which layers have experts."""

    ALL = "all"
    CHOSEN = "chosen"
    """`decoder_sparse_step`, without `mlp_only_layers`."""
    AFTER_DENSE = "after dense"
    """From `first_k_dense_replace` on, where `moe_layer_freq` divides the number of the layer."""
    INTERLEAVED = "interleaved"
    """The last of every `interleave_moe_layer_step` layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFields:
    """Where a family keeps the numbers of its experts."""

    count: tuple[str, ...]
    """Names of the field, the usual one first."""
    active: int
    """Experts per token where the file does not say."""
    ffn_size: str = "intermediate_size"
    layers: ExpertLayers = ExpertLayers.ALL
    shared: str | None = None
    """The field with the number of shared experts, each as wide as a routed one; None: `num_shared` of them."""
    num_shared: int = 0
    bias: bool = False
    router_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFields:
    """Where a family keeps the window of its attention."""

    field: str = "sliding_window"
    size: int | None = None
    """Where the file does not say; None: all layers see the whole context. A null in the file means that too."""
    full_every: int = 0
    """Every so many layers the last one sees the whole context; 0: none does. `layer_types` of a file is stronger."""
    full_every_field: str | None = None
    switched: bool = False
    """Whether `use_sliding_window` must be true, and the first `max_window_layers` see the whole context."""
    chunked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a model_type says about its models."""

    architecture: str
    """The class with a language-model head, as `architectures` names it."""
    unmoved: str | None = None
    """Why the state of its models is planned and not moved; None where its tensors have rules (nereus/layout)."""
    num_kv_heads: int | None = None
    """Where the file has none; None: as many as there are query heads."""
    head_dim: int | None = None
    """Where the file has none; None: hidden size over query heads."""
    latent: bool = False
    """Whether its attention is MLA."""
    tied: bool = False
    """Where the file does not say."""
    bias: Bias = Bias.DECLARED
    declared_bias: bool = False
    """What `attention_bias` is where the file does not say."""
    gated: bool = True
    mlp_bias: Bias = Bias.NEVER
    head_bias: bool = False
    ffn_factor: int | None = None
    """Widths of the residual stream that make the MLP, where the file has no width of it; None: it must have one."""
    learnt_positions: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    final_norm: bool = True
    qk_norm: QkNorm = QkNorm.NONE
    sinks: bool = False
    experts: ExpertFields | None = None
    window: WindowFields | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What the family calls the common fields, where it has words of its own."""
    fixed: Mapping[str, bool] = field(default_factory=dict)
    """Switches that would change the tensors, and the one value that is understood, which is also the default."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Fields that count what is planned without, and what that is."""
    nested: Mapping[str, int] = field(default_factory=dict)
    """What a `text_config` leaves out where it is the default of the class."""
