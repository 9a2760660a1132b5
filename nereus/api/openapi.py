"""`python -m nereus.api.openapi > openapi.json`: the description that is committed, so that a change of the API is seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from nereus.api.app import create_app
from nereus.control.effects import News
from nereus.runtime.controller import Command, Receipt


class Nobody:
    """A controller that is never asked: describing needs none."""

    def feed(self, after: int) -> Sequence[News]:
        raise ConnectionError("there is no controller")

    def submit(self, command: Command) -> Receipt:
        raise ConnectionError("there is no controller")


def document() -> str:
    """openapi.json as it is committed."""
    return json.dumps(create_app(Nobody()).openapi(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
