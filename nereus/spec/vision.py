"""How many parameters a vision tower and its projector have, from the `vision_config` beside a language model.

Vision towers are frozen in RL post-training of language models: they take memory, and no plan cuts them.
"""

from __future__ import annotations

from collections.abc import Mapping

from nereus.spec.family import Family
from nereus.spec.hf_fields import ConfigFields

CHANNELS = 3
"""Colours of a pixel."""

_FIELDS = Family(architecture="")


def vision_parameters(vision: object, name: str, text_hidden: int) -> int:
    """Parameters of a tower and of the projector into a residual stream of `text_hidden` elements.

    0 for a tower of a kind that is not known. Raises JobFileError for a field that cannot be read.
    """
    if not isinstance(vision, Mapping):
        return 0
    fields = ConfigFields.of(vision, name, _FIELDS)
    match vision.get("model_type"):
        case "clip_vision_model":
            return _clip(fields, text_hidden)
        case "siglip_vision_model":
            return _siglip(fields, text_hidden)
        case "qwen3_vl":
            return _qwen3_vl(fields)
        case _:
            return 0


def _clip(fields: ConfigFields, text_hidden: int) -> int:
    """A class token beside the patches, LayerNorms before and after all blocks; LLaVA's projector has two layers."""
    hidden = fields.whole("hidden_size")
    ends = hidden + (_patches(fields) + 1) * hidden + 4 * hidden
    projector = _linear(hidden, text_hidden) + _linear(text_hidden, text_hidden)
    return _pixels(fields) * hidden + ends + _blocks(fields, "num_hidden_layers") + projector


def _siglip(fields: ConfigFields, text_hidden: int) -> int:
    """A LayerNorm after all blocks; Gemma 3's projector is a norm and a matrix."""
    hidden = fields.whole("hidden_size")
    ends = _patches(fields) * hidden + 2 * hidden
    projector = hidden + hidden * text_hidden
    return _linear(_pixels(fields), hidden) + ends + _blocks(fields, "num_hidden_layers") + projector


def _qwen3_vl(fields: ConfigFields) -> int:
    """Patches span frames too; a merger joins squares of them, once at the end and once for each deepstack layer."""
    hidden = fields.whole("hidden_size")
    patches = _linear(_pixels(fields) * fields.whole("temporal_patch_size"), hidden)
    positions = fields.whole("num_position_embeddings") * hidden
    merged = fields.whole("spatial_merge_size") ** 2 * hidden
    merger = _linear(merged, merged) + _linear(merged, fields.whole("out_hidden_size"))
    deep = len(fields.layers("deepstack_visual_indexes"))
    mergers = merger + 2 * hidden + deep * (merger + 2 * merged)
    return patches + positions + _blocks(fields, "depth") + mergers


def _blocks(fields: ConfigFields, depth: str) -> int:
    """Pre-norm transformer blocks with biases: four projections of the attention, two of the MLP, two LayerNorms."""
    hidden, width = fields.whole("hidden_size"), fields.whole("intermediate_size")
    block = 4 * _linear(hidden, hidden) + _linear(hidden, width) + _linear(width, hidden) + 4 * hidden
    return fields.whole(depth) * block


def _pixels(fields: ConfigFields) -> int:
    """Values of one square patch."""
    return CHANNELS * fields.whole("patch_size") ** 2


def _patches(fields: ConfigFields) -> int:
    return (fields.whole("image_size") // fields.whole("patch_size")) ** 2


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs
