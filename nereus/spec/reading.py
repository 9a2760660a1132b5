"""YAML and JSON files as plain data. The only I/O of this room; every failure is a JobFileError with the file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from nereus.errors import JobFileError


class _JobLoader(yaml.SafeLoader):
    """YAML's safe loader, except that `3e-3` is a number and that a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, tuple[int, int]] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                here = key.start_mark.line, key.start_mark.column
                first = seen.setdefault(key.value, here)
                if first != here:
                    raise yaml.MarkedYAMLError(
                        problem=f"{_printable(key.value)} is given twice, first in line {first[0] + 1}",
                        problem_mark=key.start_mark,
                    )
        return super().construct_mapping(node, deep)


_JobLoader.add_implicit_resolver(  # type: ignore[no-untyped-call, unused-ignore]
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def read_yaml(path: Path) -> object:
    """The data in a YAML file."""
    return parse_yaml(_text(path, "job file"), str(path))


def read_data(path: Path, noun: str) -> object:
    """The data in a JSON file, by its name, or else in a YAML file; `noun` is what messages call it if it is not there."""
    text = _text(path, noun)
    return parse_json(text, str(path)) if path.suffix == ".json" else parse_yaml(text, str(path))


def _text(path: Path, noun: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobFileError(noun, str(path), "there is no such file") from None
    except (OSError, ValueError) as error:
        raise JobFileError(noun, str(path), f"it must be a readable file of UTF-8 text: {error}") from None


def parse_yaml(text: str, name: str) -> object:
    """The data in a YAML text; `name` is what messages call it."""
    try:
        return yaml.load(text, Loader=_JobLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        lines = text.splitlines() or [""]
        seen = lines[min(line, len(lines) - 1)].strip()
        raise JobFileError(f"{name}, line {line + 1}", seen, f"it must be YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise JobFileError(name, "its text", f"it must be YAML: {error}") from None


def parse_json(text: str, name: str) -> object:
    """The data in a JSON text; `name` is what messages call it."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        lines = text.splitlines() or [""]
        seen = lines[min(error.lineno, len(lines)) - 1].strip()
        raise JobFileError(f"{name}, line {error.lineno}", seen, f"it must be JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise JobFileError(name, "its text", f"it must be JSON: {error}") from None


def _printable(key: str) -> str:
    """A key as one line."""
    return key if key.isprintable() else repr(key)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, unless it has a key twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{_printable(key)} is given twice in one object")
        found[key] = value
    return found
