"""The frameworks that `nereus plan --export` knows."""

from __future__ import annotations

from collections.abc import Mapping

from nereus.errors import UserError
from nereus.integrations.framework import Framework
from nereus.integrations.nemo_rl.overrides import NEMO_RL
from nereus.integrations.openrlhf.flags import OPENRLHF
from nereus.integrations.verl.overrides import VERL

EXPORTS: Mapping[str, Framework] = {framework.name: framework for framework in (VERL, OPENRLHF, NEMO_RL)}
"""By what `--export` calls them."""


def exported(name: str) -> Framework:
    """The framework of this name. Raises UserError."""
    if name not in EXPORTS:
        known = ", ".join(str(framework) for framework in EXPORTS.values())
        raise UserError(f"--export: {name!r} is not allowed; plans can be written for {known}")
    return EXPORTS[name]
