"""The command that searches for hyper-parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from coterie.cli.arguments import AsJson, DataDir, Debug, Overrides, Quiet
from coterie.cli.printing import friendly, loaded, print_json, standard_output
from coterie.errors import CoterieError


def tune(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG|PRESET", help="A YAML file, or the name of a preset; NAME:fast is its small size."
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", metavar="NAME", help="A method; repeatable; default: all of CONFIG."),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            "--space",
            metavar="KEY=VALUES",
            help="What to search: lambda=0.1,1,10 or training.lr=0.001..0.1:log; repeatable.",
        ),
    ] = None,
    search: Annotated[str | None, typer.Option(help="grid, random or optuna.")] = None,
    trials: Annotated[int | None, typer.Option(help="Settings of each method; default: the grid, else 20.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of each trial; default: those of CONFIG.")] = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory of the search; default: runs/tune-<name>-<n>.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="DIR", help="Go on with a search.")] = None,
    write_preset: Annotated[
        Path | None,
        typer.Option("--write-preset", metavar="FILE", help="Also write the tuned experiment to this file."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search for hyper-parameters by validation data; test data are never read.

    Every method gets the same number of trials and rounds, the same seeds and data. Ctrl-C keeps what is finished; the
    same command, or --resume DIR, goes on.
    """
    console = standard_output()
    with friendly(debug, data_dir):
        described = (config, algorithm, space, search, trials, rounds, overrides, output, device)
        if resume is not None and any(each is not None and each != [] for each in described):
            raise CoterieError(
                f"--resume {resume} goes on with the search as it began: leave out what else describes one."
            )
        if write_preset is not None and write_preset.suffix not in (".yaml", ".yml"):
            raise CoterieError(f"--write-preset {write_preset}: an experiment is a file that ends in .yaml.")
        shown = None if quiet or as_json else console
        loaded(console, quiet or as_json)
        from coterie import tuning
        from coterie.runs.directory import make_folder, refuse_results
        from coterie.tuning.preset import write_tuned
        from coterie.tuning.space import read_space
        from coterie.tuning.trial import written

        if write_preset is not None:  # found out now, and not after the search
            refuse_results(write_preset)
            make_folder(write_preset.parent)
        if resume is not None:
            found = tuning.resume_tuning(resume, data_dir=data_dir, console=shown)
        else:
            found = tuning.tune(
                config or "quickstart", overrides or [], algorithms=algorithm or [], space=read_space(space or []),
                search=search, trials=trials, rounds=rounds, data_dir=data_dir, output=output, device=device,
                console=shown,
            )  # fmt: skip
        if write_preset is not None:
            write_tuned(found, write_preset)
        if as_json:
            print_json(
                {
                    "directory": str(found.directory),
                    "metric": found.metric,
                    "best": {method: written(values) for method, values in found.best.items()},
                    "remarks": list(found.remarks),
                    "trials": [written(row) for row in found.rows],
                }
            )
        else:
            console.print()
            console.print(found.table())
            for method, values in found.best.items():
                setting = ", ".join(f"{key}: {value}" for key, value in values.items())
                console.print(f"[bold]best[/] {escape(f'{method}: {setting}')}", highlight=False, soft_wrap=True)
            for remark in found.remarks:
                console.print(escape(remark), style="yellow", highlight=False, soft_wrap=True)
            best = found.directory / "best.yaml"
            console.print(escape(f"Run it with: coterie run {best}"), highlight=False, soft_wrap=True)
        if found.failed:
            raise CoterieError(f"every trial failed of {'; '.join(found.failed)}")
