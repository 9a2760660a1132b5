"""The fields of a `config.json`, each read with a check of its type, under the names that its family has for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nereus.errors import JobFileError
from nereus.spec.family import Family
from nereus.spec.problems import Problem, refuse


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The fields of one config, or of a `text_config` in it."""

    data: Mapping[str, Any]
    name: str
    """What messages call the file, and the path inside it."""
    aliases: Mapping[str, str]
    defaults: Mapping[str, int]
    """What is left out where it is the default; only nested configs do so."""

    @classmethod
    def of(cls, data: Mapping[str, Any], name: str, family: Family, *, nested: bool = False) -> ConfigFields:
        """The fields of a config of this family."""
        return cls(data, name, family.aliases, family.nested if nested else {})

    def called(self, field: str) -> str:
        """The family's name for a common field."""
        return self.aliases.get(field, field)

    def declares(self, field: str) -> bool:
        """Whether the file has the field, be it null."""
        return self.called(field) in self.data

    def has(self, field: str) -> bool:
        """Whether there is a value; HF writes null for a field that is left to its default."""
        return self.data.get(self.called(field)) is not None

    def whole(self, field: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of `least` or more."""
        name = self.called(field)
        value = self.data.get(name)
        if value is None:
            value = self.defaults.get(field) if default is None else default
        if value is None:
            raise self.problem(name, None, "the field is required")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
            raise self.problem(name, value, f"it must be a whole number of {least} or more")
        return value

    def flag(self, field: str, *, default: bool) -> bool:
        """True or false."""
        name = self.called(field)
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.problem(name, value, "it must be true or false")
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
