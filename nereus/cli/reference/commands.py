"""Every command with its arguments and options, as typer knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from nereus.cli.app import app
from nereus.cli.reference.tables import cell, table

ABOUT = """\
Every command as its `--help` has it. [The command line](../cli.md) explains them, with what they print.
"""


def commands() -> str:
    """All commands, those of groups below their group."""
    return "\n".join((ABOUT, *(_command(name, command) for name, command in every_command())))


def every_command() -> Iterator[tuple[str, Any]]:
    """Name and command, as typer makes it, of `nereus` and of all that is below it."""
    return _below("nereus", typer.main.get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for child, found in getattr(command, "commands", {}).items():
        yield from _below(f"{name} {child}", found)


def _command(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    takes = ["COMMAND"] if hasattr(command, "commands") else [_argument(param) for param in arguments]
    usage = " ".join((name, *takes, *(["[OPTIONS]"] if options else [])))
    rows = [(f"`{_argument(param)}`", _default(param), cell(param.help)) for param in arguments]
    rows += [(_names(param), _default(param), _meaning(param)) for param in options]
    parts = [f"## {name}\n", f"{command.help}\n", f"```\n{usage}\n```\n"]
    return "\n".join((*parts, *([table(("argument or option", "default", "meaning"), rows)] if rows else [])))


def _argument(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _names(param: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))


def _meaning(param: Any) -> str:
    variables = [param.envvar] if isinstance(param.envvar, str) else param.envvar or ()
    return " ".join((cell(param.help), *(f"The environment's `{name}` stands for it." for name in variables)))


def _default(param: Any) -> str:
    if isinstance(param.show_default, str):
        return param.show_default
    if param.required:
        return "required"
    if param.default is None or param.default is False:
        return "off" if getattr(param, "is_flag", False) else "none"
    return f"`{param.default}`"
