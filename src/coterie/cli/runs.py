"""Commands that train: run, resume, adapt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from coterie.cli.arguments import AsJson, ConfigArgument, DataDir, Debug, Overrides, Quiet
from coterie.cli.printing import friendly, loaded, print_json, standard_output
from coterie.errors import CoterieError


def run(
    config: ConfigArgument = "quickstart",
    overrides: Overrides = None,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run directory; default: runs/<name>-<n>.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run directory that --output, or the configuration, names.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = None,
    executor: Annotated[
        str | None,
        typer.Option(help="How models train side by side: auto, fastest (measured), stacked, vmap or loop."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Cores to use; default: all, or OMP_NUM_THREADS.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Where clients train: simulation (here), or ray (actors of a Ray cluster).")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="TRACKER", help="Also log to tensorboard, mlflow or wandb; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the resolved configuration and what it will cost; train nothing."),
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run an experiment and say who gained and who lost.

    CONFIG is a YAML file, PRESET the name of a ready-made experiment in the published size, or NAME:fast in a
    small one; without either: the quickstart.
    Ctrl-C saves; [bold]coterie resume[/] goes on from there.
    """
    console = standard_output()
    flags = {"engine": engine, "executor": executor, "workers": workers}
    overrides = [*(overrides or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
    with friendly(debug, data_dir):
        experiment = loaded(console, quiet)
        if overwrite and output is None and experiment.read_config(config, overrides).output is None:
            raise CoterieError(
                "--overwrite replaces the run directory that --output names: add --output, or leave it out."
            )
        if track:
            stated = experiment.read_config(config, overrides).tracking  # a section of the file stays as it is
            overrides += [f"tracking.{name}=true" for name in track if not getattr(stated, name, None)]
        if dry_run:
            from coterie.experiment.estimate import dry_run as estimate

            settled = experiment.read_config(config, overrides, device)
            text, table = estimate(settled, data_dir)
            console.print(Syntax(text, "yaml", background_color="default"))
            console.print(table)
            return
        result = experiment.run(
            config,
            overrides,
            data_dir=data_dir,
            output=output,
            overwrite=overwrite,
            device=device,
            console=None if quiet else console,
        )
        _print_result(console, result)


def resume(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of an interrupted experiment.")],
    data_dir: DataDir = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Continue an interrupted experiment as if nothing had happened.

    RUN is its run directory, which [bold]coterie run[/] has printed. Results are those of an uninterrupted
    run.
    """
    console = standard_output()
    with friendly(debug, data_dir):
        experiment = loaded(console, quiet)
        _print_result(console, experiment.resume(directory, data_dir=data_dir, console=None if quiet else console))


def adapt(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of a finished experiment.")],
    newcomers: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG|TABLE]",
            help="A YAML file whose section federation describes the newcomers, or the table (.csv, .parquet) of one "
            "new client; default: those that RUN held out.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="Such as -s newcomers.epochs=5 or -s newcomers.labelled=false; repeatable.",
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None, typer.Option("--algorithm", "-a", help="A method of RUN; repeatable; default: all.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="Of TABLE: the new client's name; default: the file's.")] = None,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder; default: RUN/adapted-<n>.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Let newcomers join a finished run: with labels they train on, without they predict with what they receive.

    Newcomers are clients that RUN held out (its section newcomers), those of another configuration, or the owner of a
    table, who has no labels where it lacks the column of the target.
    """
    console = standard_output()
    with friendly(debug, data_dir):
        experiment = loaded(console, quiet or as_json)
        result = experiment.adapt(
            directory,
            newcomers,
            overrides or [],
            algorithms=algorithm or [],
            client=client,
            data_dir=data_dir,
            output=output,
            console=None if quiet or as_json else console,
        )
        if as_json:
            print_json(result.rows)
            return
        if result.rows:
            console.print(result.table())
        for remark in result.remarks:
            console.print(escape(remark), highlight=False, soft_wrap=True)
        console.print(f"Tables and models are in {escape(str(result.directory))}", highlight=False, soft_wrap=True)


def _print_result(console: Console, result: Any) -> None:
    console.print()
    console.print(result.table())
    if result.newcomers:
        console.print()
        console.print(result.newcomers_table())
    for remark in result.remarks:
        console.print(escape(remark), highlight=False, soft_wrap=True)
    console.print(f"Everything about this run is in {escape(str(result.directory))}", highlight=False, soft_wrap=True)
    if (page := result.directory / "report.html").exists():
        console.print(f"Look at {escape(str(page))}", highlight=False, soft_wrap=True)
    if result.diverged:
        raise CoterieError(f"not every run reached its end: {'; '.join(result.diverged)}")
