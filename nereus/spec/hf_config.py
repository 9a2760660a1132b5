"""An HF `config.json` as a model, or as one JobFileError that names the field, its value and what is supported.

    config.json --(text_config)--> model_type -> Family (families.py) -> the fields that plans depend on -> HfModel

Fields that no tensor and no plan depends on are not looked at. Some models can be planned and not moved: quantised ones,
those with a vision tower, and families without sharding rules; `HfModel.unmoved` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nereus.spec.decoder import Decoder
from nereus.spec.families import FAMILIES, UNPLANNED, WRAPPERS
from nereus.spec.family import Family
from nereus.spec.hf_decoder import read_decoder
from nereus.spec.hf_fields import ConfigFields
from nereus.spec.problems import Problem, one_of, refuse
from nereus.spec.vision import vision_parameters
from nereus.spec.weights import num_parameters

DTYPES = ("bfloat16", "float16", "float32")
"""What parameters may be in; HF's default, for a file that does not say, is float32."""

DEQUANTISED = "bfloat16"
"""What a quantised checkpoint is trained in where its file does not say: transformers dequantises to it."""


class HfModel(NamedTuple):
    """What a config.json says about a model."""

    decoder: Decoder
    dtype: str
    """Of the parameters; of a quantised checkpoint, once it is dequantised for training."""
    vision_parameters: int = 0
    """Of a vision tower and its projector, which no plan cuts; 0 where there is none, or where it cannot be counted."""
    left_out: tuple[str, ...] = ()
    """What the model has that is neither in the decoder nor counted."""
    unmoved: tuple[Problem, ...] = ()
    """Why its state cannot be moved; empty where it can."""

    @property
    def num_parameters(self) -> int:
        """All that are counted, tied ones once."""
        return num_parameters(self.decoder) + self.vision_parameters


def is_hf_config(data: object) -> bool:
    """Whether plain data is a config.json rather than a job file: a job has neither of these fields."""
    return isinstance(data, Mapping) and not {"model_type", "architectures"}.isdisjoint(data)


def parse_movable(data: object, name: str) -> HfModel:
    """A model whose state can be moved. Raises JobFileError for any other, with the reason."""
    model = parse_hf_config(data, name)
    if model.unmoved:
        raise refuse(model.unmoved)
    return model


def parse_hf_config(data: object, name: str) -> HfModel:
    """The model that a config.json describes; `name` is what messages call the file. Raises JobFileError."""
    if not isinstance(data, Mapping):
        raise refuse([Problem(name, data, "it must be the object of an HF config.json")])
    model_type = data.get("model_type")
    if isinstance(model_type, str) and model_type in WRAPPERS:
        return _wrapped(data, name, model_type)
    return _language_model(data, name)


def _wrapped(data: Mapping[str, Any], name: str, model_type: str) -> HfModel:
    """A model with its decoder in `text_config`: that is planned, and the rest is counted where it is understood."""
    _check_architecture(data, name, WRAPPERS[model_type])
    text = data.get("text_config")
    if not isinstance(text, Mapping):
        raise refuse([Problem(f"{name}: text_config", text, "it must be the config of the language model")])
    shared = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")
    outer = {field: data[field] for field in shared if data.get(field) is not None}
    model = _language_model({**outer, **text}, f"{name}: text_config", nested=True)
    counted = vision_parameters(data.get("vision_config"), f"{name}: vision_config", model.decoder.hidden_size)
    reason = "its vision tower has tensors without a rule for being cut; its language model can be planned, not moved"
    return model._replace(
        vision_parameters=counted,
        left_out=model.left_out if counted else (*model.left_out, "the vision tower and its projector"),
        unmoved=(Problem(f"{name}: model_type", model_type, reason), *model.unmoved),
    )


def _language_model(data: Mapping[str, Any], name: str, *, nested: bool = False) -> HfModel:
    model_type = data.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or not isinstance(model_type, str):
        reason = (UNPLANNED.get(model_type) if isinstance(model_type, str) else None) or "its tensors are not known"
        supported = f"{reason}; supported are {', '.join((*FAMILIES, *WRAPPERS))}"
        raise refuse([Problem(f"{name}: model_type", model_type, supported)])
    fields = ConfigFields.of(data, name, family, nested=nested)
    _check_architecture(data, name, family.architecture)
    for field, value in family.fixed.items():
        if fields.flag(field, default=value) is not value:
            raise fields.problem(field, not value, f"it must be {str(value).lower()}: other tensors are not understood")
    more = {what: fields.whole(field, 0, least=0) for field, what in family.left_out.items()}
    left_out = tuple(f"{count} {what}" for what, count in more.items() if count)
    unmoved = tuple(_unmoved(fields, model_type, family, left_out))
    return HfModel(read_decoder(fields, model_type, family), _dtype(fields), left_out=left_out, unmoved=unmoved)


def _check_architecture(data: Mapping[str, Any], name: str, architecture: str) -> None:
    architectures = data.get("architectures")
    if architectures is not None and architectures != [architecture]:
        only = f"supported is ['{architecture}']: other heads have other tensors"
        raise refuse([Problem(f"{name}: architectures", architectures, only)])


def _unmoved(fields: ConfigFields, model_type: str, family: Family, left_out: tuple[str, ...]) -> Iterator[Problem]:
    """Why its state cannot be moved."""
    quantised = fields.data.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        advice = "quantised tensors are not moved; take the config of the unquantised checkpoint"
        yield Problem(f"{fields.name}: quantization_config.quant_method", method, advice)
    if family.unmoved is not None:
        yield Problem(f"{fields.name}: model_type", model_type, family.unmoved)
    for what in left_out:
        yield Problem(f"{fields.name}: model_type", model_type, f"its {what} would be lost")


def _dtype(fields: ConfigFields) -> str:
    """Newer files call it dtype, older ones torch_dtype."""
    field = "dtype" if fields.has("dtype") else "torch_dtype"
    value = fields.data.get(field)
    if value is None:
        return DEQUANTISED if fields.has("quantization_config") else "float32"
    if value not in DTYPES:
        raise fields.problem(field, value, f"it must be {one_of(DTYPES)}")
    return str(value)
