"""The command line: each subcommand imports what it needs, so that `nereus --help` loads neither Ray nor torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nereus import __version__
from nereus.api.address import DEFAULT_URL
from nereus.cli.controller_commands import controller, leave
from nereus.cli.examples import file_or_example
from nereus.errors import NereusError, UserError

app = typer.Typer(
    name="nereus",
    help="Adapts the parallelism of LLM post-training jobs while they run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(controller, name="controller")
app.command()(leave)

EXIT_FAILED, EXIT_USER_ERROR, EXIT_INTERRUPTED = 1, 2, 130

ADDRESS_HELP = "`local` for a private cluster, or the address of a Ray cluster."
RUN_DIR_HELP = "Where the run's folder goes; in a Ray job ~/.nereus/runs."

Url = Annotated[str, typer.Option("--url", help="Where the job's API is; `nereus run` prints it.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="NEREUS_TOKEN_FILE", help="The file with a token, where the API asks for one."),
]
JobName = Annotated[str | None, typer.Option("--job", help="Which job, where the API serves several.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nereus {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Adapts the parallelism of LLM post-training jobs while they run."""


@app.command()
def run(
    job: Annotated[
        Path, typer.Argument(help="The job file, or an example's name.", metavar="JOB", callback=file_or_example)
    ],
    steps: Annotated[int | None, typer.Option(min=1, help="Run so many RL steps instead of the job's.")] = None,
    address: Annotated[str | None, typer.Option(help=ADDRESS_HELP, show_default="the Ray job's cluster, else local")] = None,
    run_dir: Annotated[Path | None, typer.Option(help=RUN_DIR_HELP, show_default="runs")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object, on the last line.")] = False,
    availability: Annotated[Path | None, typer.Option(help="A CSV of the devices available over time.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on from a checkpoint, or from the last one of a run's folder.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Hand the job over to the cluster's controller, and do not wait for it.")
    ] = False,
) -> None:
    """Run an RL job: live table, decisions, transitions, summary. Where a controller lives, it is handed over to it."""
    from nereus.cli.run import Asked, run_job

    asked = Asked(
        steps=steps,
        address=address,
        run_dir=run_dir,
        availability=availability,
        resume=resume,
        detach=detach,
        as_json=as_json,
    )
    try:
        run_job(job, asked)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the run's processes have ended\n")
        raise typer.Exit(EXIT_INTERRUPTED) from None


@app.command()
def status(
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    job: JobName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show a running job: plan, devices, last step, last decision."""
    from nereus.api.client import connect
    from nereus.cli.status import show_status

    show_status(connect(url, token_file, job), as_json=as_json)


@app.command()
def replan(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and record, but change nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Carry out the best feasible plan even if it does not pay.")
    ] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    job: JobName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the request as one JSON object.")] = False,
) -> None:
    """Have a running job look at its plan again, now, and show what it decides."""
    from nereus.api.client import connect
    from nereus.cli.replan import ask_for_replan

    ask_for_replan(connect(url, token_file, job), dry_run=dry_run, forced=force, as_json=as_json)


def _command(verb: str, does: str) -> None:
    """A subcommand that hands one verb to a running job."""

    def ask(
        url: Url = DEFAULT_URL,
        token_file: TokenFile = None,
        job: JobName = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the command as one JSON object.")] = False,
    ) -> None:
        from nereus.api.client import connect
        from nereus.cli.command import command_job

        command_job(connect(url, token_file, job), verb, as_json=as_json)

    app.command(name=verb, help=does)(ask)


_command("pause", "Hold a running job at its next boundary between two steps.")
_command("resume", "Let a paused job go on.")
_command("abort", "End what a running job plans or moves: rolled back before the first Destroy, else carried to its plan.")
_command("rollback", "Return a running job to the plan before the one in force, by a forced transition.")


@app.command()
def plan(
    job: Annotated[
        Path,
        typer.Argument(
            help="A job file, the outline of a job on accelerators, or an example's name.",
            metavar="JOB",
            callback=file_or_example,
        ),
    ],
    gpus: Annotated[str | None, typer.Option(help="Plan for so many devices, such as 4,8.")] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="Show so many of the best plans.")] = 3,
    explain: Annotated[bool, typer.Option("--explain", help="Say what keeps faster candidates out (outlines).")] = False,
    lengths: Annotated[Path | None, typer.Option(help="A CSV of response lengths: when memory runs out (outlines).")] = None,
    export: Annotated[str | None, typer.Option(help="Overrides to paste: verl, openrlhf or nemo-rl (outlines).")] = None,
    efficiencies: Annotated[Path | None, typer.Option(help="A file of learnt efficiencies to plan with (outlines).")] = None,
    calibrate: Annotated[Path | None, typer.Option(help="A log of verl to learn from; needs --ran (outlines).")] = None,
    ran: Annotated[Path | None, typer.Option(help="The plan file of the run of that log (outlines).")] = None,
    save_efficiencies: Annotated[Path | None, typer.Option(help="Where to write what is known then (outlines).")] = None,
    suggest_probes: Annotated[
        int, typer.Option(min=0, max=20, help="Suggest so many runs whose times would change the choice most (outlines).")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Which layout for how many devices: the best plans of a job, how fast, and how much memory."""
    from nereus.cli.plan import Asked
    from nereus.cli.plan import plan as plan_file

    asked = Asked(
        gpus=gpus,
        top=top,
        explain=explain,
        lengths=lengths,
        export=export,
        efficiencies=efficiencies,
        calibrate=calibrate,
        ran=ran,
        save_efficiencies=save_efficiencies,
        suggest_probes=suggest_probes,
        as_json=as_json,
    )
    plan_file(job, asked)


@app.command()
def inventory(
    save: Annotated[Path | None, typer.Option(help="Write it to a file that an outline's nodes can name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """What this machine has: accelerators, their links, the host's memory and network."""
    from nereus.cli.inventory import show_inventory

    show_inventory(save, as_json=as_json)


@app.command()
def simulate(
    outline: Annotated[
        Path,
        typer.Argument(
            help="The outline of a job on accelerators, or an example's name.", metavar="OUTLINE", callback=file_or_example
        ),
    ],
    availability: Annotated[Path, typer.Option(help="A CSV of the devices available over time.")],
    lengths: Annotated[
        Path | None, typer.Option(help="A CSV of response lengths.", show_default="the outline's mean")
    ] = None,
    drift: Annotated[Path | None, typer.Option(help="A CSV of how slow devices and links are over time.")] = None,
    policy: Annotated[
        str, typer.Option(help="Who chooses plans; several, such as nereus,restart, are compared.")
    ] = "nereus",
    gamma: Annotated[float, typer.Option(help="Confidence margin of the payback rule, 0 to 1.")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Which simulated world.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="At most so many RL steps.", show_default="the whole trace")
    ] = None,
    notice: Annotated[float, typer.Option(help="Seconds between the notice that a device leaves and its end.")] = 120.0,
    html: Annotated[Path | None, typer.Option(help="Write a report to look at.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, on the last line.")] = False,
) -> None:
    """What a job would come to on a pool that changes, in virtual time: throughput, time lost, decisions, money."""
    from nereus.cli.simulate import Asked
    from nereus.cli.simulate import simulate as simulate_outline

    asked = Asked(
        availability=availability,
        lengths=lengths,
        drift=drift,
        policy=policy,
        gamma=gamma,
        seed=seed,
        steps=steps,
        notice_s=notice,
        html=html,
        as_json=as_json,
    )
    simulate_outline(outline, asked)


@app.command()
def transition(
    job: Annotated[
        Path,
        typer.Argument(
            help="A job file, the config.json of a model, or an example's name.", metavar="JOB", callback=file_or_example
        ),
    ],
    before: Annotated[Path, typer.Option("--from", help="The plan file that it starts from.")],
    after: Annotated[Path, typer.Option("--to", help="The plan file that it leads to. Ranks are chosen among its devices.")],
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="Do not choose: the devices of --to are in rank order.")
    ] = False,
    devices_per_node: Annotated[
        int | None, typer.Option(min=1, help="Devices of a node.", show_default="the job's, else 8")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Usable memory of a device, such as 80GiB.", show_default="the job's, else no limit")
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(help="Buffers of a device each way.", show_default="the job's, else 64MiB")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, on the last line.")] = False,
) -> None:
    """What moving from one plan to another takes: DAG, bytes, memory, communicators, time. Nothing is started."""
    from nereus.cli.transition import Options, show_transition

    options = Options(keep_order=keep_order, devices_per_node=devices_per_node, memory=memory, bucket=bucket)
    show_transition(job, before, after, options, as_json=as_json)


@app.command()
def examples(
    copy: Annotated[Path | None, typer.Option(help="Copy their folder there, to edit them.", metavar="FOLDER")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The examples that come with the package; JOB may be the name of one."""
    from nereus.cli.examples import show_examples

    show_examples(copy, as_json=as_json)


def main() -> None:
    """Entry point: errors become one message and an exit code, 2 where a person can fix the input."""
    try:
        app()
    except UserError as error:
        _fail(error, EXIT_USER_ERROR)
    except NereusError as error:
        _fail(error, EXIT_FAILED)


def _fail(error: NereusError, code: int) -> None:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(code)
