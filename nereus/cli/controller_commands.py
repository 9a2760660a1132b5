"""The commands about a whole cluster: `nereus controller`, `nereus leave`; each imports what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nereus.api.address import DEFAULT_PORT, LOOPBACK

controller = typer.Typer(
    help="The controller of several jobs on a cluster: start, status, cancel, stop.", no_args_is_help=True
)

ClusterAddress = Annotated[
    str | None, typer.Option("--address", envvar="RAY_ADDRESS", help="HOST:PORT of the Ray cluster's head.")
]


@controller.command("start")
def controller_start(
    address: ClusterAddress = None,
    folder: Annotated[
        Path, typer.Option(help="Its records and runs, on the head node.", show_default="~/.nereus/controller")
    ] = Path("~/.nereus/controller"),
    host: Annotated[str, typer.Option(help="Where its API listens; beyond loopback it needs a token file.")] = LOOPBACK,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of its API; on loopback, if taken, the next free one.")
    ] = DEFAULT_PORT,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", envvar="NEREUS_TOKEN_FILE", help="Tokens of the API, by role, on the head node."),
    ] = None,
    min_devices: Annotated[
        int, typer.Option(min=0, help="Devices that the autoscaler is asked for however few are needed.")
    ] = 0,
    max_devices: Annotated[
        int | None, typer.Option(min=0, help="Devices that it is asked for at most.", show_default="what the jobs gain by")
    ] = None,
) -> None:
    """Start the controller, detached; where it runs already, say so."""
    from nereus.cli.controller import start_controller

    start_controller(address, folder, host, port, token_file, min_devices, max_devices)


@controller.command("status")
def controller_status(
    address: ClusterAddress = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Its jobs: state, devices, epoch, and why one waits."""
    from nereus.cli.controller import show_controller

    show_controller(address, as_json=as_json)


@controller.command("cancel")
def controller_cancel(
    job: Annotated[str, typer.Argument(help="The job, by the name that the controller has given it.")],
    address: ClusterAddress = None,
) -> None:
    """End one job, running or waiting; the others get its devices."""
    from nereus.cli.controller import cancel_job

    cancel_job(address, job)


@controller.command("stop")
def controller_stop(address: ClusterAddress = None) -> None:
    """End the controller and all its jobs."""
    from nereus.cli.controller import stop_controller

    stop_controller(address)


def leave(
    address: ClusterAddress = None,
    node: Annotated[
        str | None, typer.Option(help="The node, by Ray's id or its address.", show_default="the one this runs on")
    ] = None,
    notice: Annotated[float, typer.Option(min=1, help="Seconds until the node is gone.")] = 90.0,
) -> None:
    """Announce that a node leaves; return when no job uses it any more, or the time is over. For preStop hooks."""
    from nereus.cli.controller import take_leave

    take_leave(address, node, notice)
