"""Problems of a job file as values, and all problems of one file as a single message.

pydantic's errors --translated--> Problem(field, value, allowed) <-- cross-field checks
                                        |
                                   JobFileError
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nereus.errors import JobFileError
from nereus.spec.stages import STAGES

MAX_LISTED = 3
"""Further problems that the message names by field; more of them would hide the first."""
_MAX_VALUE_CHARS = 60
"""Longest value that the message shows whole."""
_UNKNOWN_FIELD = ("extra_forbidden", "invalid_key")
_NO_KNOWN_TAG = ("union_tag_invalid", "union_tag_not_found")


class Problem(NamedTuple):
    """One thing that is wrong: the field's path, the value seen, and what is allowed."""

    field: str
    value: object
    allowed: str


def refuse(problems: Sequence[Problem]) -> JobFileError:
    """One error for all problems of a file: the first in full, the others by field."""
    first, rest = problems[0], problems[1:]
    allowed = first.allowed
    if rest:
        fields = list(dict.fromkeys(problem.field for problem in rest))
        named = ", ".join(fields[:MAX_LISTED]) + (", ..." if len(fields) > MAX_LISTED else "")
        allowed += f" (and {len(rest)} more problem{'s' if len(rest) > 1 else ''}: {named})"
    return JobFileError(first.field, _shown(first.value), allowed)


def one_of(allowed: Iterable[object]) -> str:
    """`1, 2 or 4`; long lists are cut."""
    words = [str(word) for word in allowed]
    if len(words) > 12:
        words = [*words[:10], "...", words[-1]]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def unknown(name: object, names: Iterable[str], noun: str) -> str:
    """What to say about a name that isn't there: the nearest one that is, and all of them."""
    known = list(names)
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f", did you mean {near[0]}?" if near else ";"
    return f"there is no such {noun}{hint} it must be {', '.join(known[:-1])} or {known[-1]}"


def from_validation(error: ValidationError, model: type[BaseModel], data: object) -> list[Problem]:
    """The problems in a failed validation of `data`, unknown fields first: one misspelling often causes two errors."""
    told = [detail for detail in error.errors(include_url=False) if not _only_counts_wrong_entries(detail)]
    details = sorted(told, key=lambda detail: detail["type"] not in _UNKNOWN_FIELD)
    return [_problem(detail, model, data) for detail in details]


def _only_counts_wrong_entries(detail: ErrorDetails) -> bool:
    """Whether a list is called too short for entries that are there, and whose own problems are told."""
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


def _problem(detail: ErrorDetails, model: type[BaseModel], data: object) -> Problem:
    loc, kind, value = detail["loc"], detail["type"], detail["input"]
    field = _path(loc, data)
    if kind == "missing":
        return Problem(field, None, "the field is required")
    if kind in _UNKNOWN_FIELD:
        return Problem(field, value, unknown(loc[-1], _fields(model, loc[:-1]), "field"))
    if kind in _NO_KNOWN_TAG and isinstance(value, Mapping):
        return Problem(f"{field}.kind", value.get("kind"), "it must be 'cpu' or 'gpu'")
    if kind == "dict_type":
        return Problem(field, value, f"it must be a mapping of model-stages: {', '.join(STAGES)}")
    if kind in ("model_type", *_NO_KNOWN_TAG):
        return Problem(field, value, f"it must be a mapping with the fields {', '.join(_fields(model, loc))}")
    return Problem(field, value, _words(detail))


def _words(detail: ErrorDetails) -> str:
    """What a field of the right name must be, from pydantic's error type and its context."""
    context: Mapping[str, Any] = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "int_type" | "int_from_float":
            return "it must be a whole number"
        case "float_type" | "finite_number":
            return "it must be a finite number"
        case "bool_type":
            return "it must be true or false"
        case "string_type":
            return "it must be a string"
        case "tuple_type":
            return "it must be a list"
        case "literal_error":
            return f"it must be {context['expected']}"
        case "greater_than_equal":
            return f"it must be at least {context['ge']}"
        case "greater_than":
            return f"it must be above {context['gt']}"
        case "less_than_equal":
            return f"it must be at most {context['le']}"
        case "less_than":
            return f"it must be below {context['lt']}"
        case "too_short":
            return f"the list must have {context['min_length']} or more entries"
        case "too_long":
            return f"the list must have {context['max_length']} entries"
        case "string_too_short":
            return "it must not be empty"
        case _:
            return detail["msg"].replace("Input should", "it must")


def _path(loc: tuple[int | str, ...], data: object) -> str:
    """`plan.actor_training.tp`, `transitions[0].step`; the tags of unions, which no file contains, are left out."""
    path = ""
    for at, part in enumerate(loc):
        inside = isinstance(data, Mapping) and part in data
        if part == "[key]" or (isinstance(part, str) and not inside and at < len(loc) - 1):
            continue
        word = part if isinstance(part, int) or part.isprintable() else repr(part)
        path += f"[{word}]" if isinstance(part, int) and not isinstance(data, Mapping) else f".{word}" if path else str(word)
        if inside or (isinstance(data, Sequence) and isinstance(part, int) and part < len(data)):
            data = data[part]  # type: ignore[index, call-overload, unused-ignore]
    return path or "job"


def _fields(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The names of the fields of the model that `loc` leads to; none where it leads to no model."""
    candidates = [model]
    for part in loc:
        fields = [candidate.model_fields[part] for candidate in candidates if part in candidate.model_fields]
        tagged = [c for c in candidates if "kind" in c.model_fields and part in get_args(c.model_fields["kind"].annotation)]
        if fields:
            candidates = [found for field in fields for found in _models(field.annotation)]
        elif tagged:
            candidates = tagged
    return list(dict.fromkeys(name for candidate in candidates for name in candidate.model_fields))


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models(argument)]


def _shown(value: object) -> object:
    """The value, or its beginning where it is long: a wrong value can be a whole section of the file."""
    try:
        return value if len(repr(value)) <= _MAX_VALUE_CHARS else reprlib.repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits; a list nested as deeply
        return f"{type(value).__name__} too long to show"
