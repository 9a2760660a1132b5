"""`python -m nereus.api.openapi > openapi.json`: the description that is committed, so that a change of the API is seen."""

from __future__ import annotations

import json
import sys

from nereus.api.app import create_app
from nereus.runtime.controller import ControllerPort


class Nobody:
    """The jobs of nobody: describing needs none."""

    def names(self) -> tuple[str, ...]:
        return ()

    def port(self, name: str) -> ControllerPort:
        raise KeyError(name)

    @property
    def standing(self) -> None:
        return None


def document() -> str:
    """openapi.json as it is committed."""
    return json.dumps(create_app(Nobody()).openapi(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
