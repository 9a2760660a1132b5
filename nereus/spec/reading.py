"""A YAML file as plain data. The only I/O of this room; every failure is a JobFileError with the file and the line."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from nereus.errors import JobFileError


class _JobLoader(yaml.SafeLoader):
    """YAML's safe loader, except that `3e-3` is a number and that a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                line = seen.setdefault(key.value, key.start_mark.line)
                if line != key.start_mark.line:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value} is given twice, first in line {line + 1}", problem_mark=key.start_mark
                    )
        return super().construct_mapping(node, deep)


_JobLoader.add_implicit_resolver(  # type: ignore[no-untyped-call, unused-ignore]
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def read_yaml(path: Path) -> object:
    """The data in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobFileError("job file", str(path), "there is no such file") from None
    except (OSError, ValueError) as error:
        raise JobFileError("job file", str(path), f"it must be a readable file of UTF-8 text: {error}") from None
    return parse_yaml(text, str(path))


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
