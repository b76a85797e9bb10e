"""The command that shows a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from coterie.cli.arguments import AsJson, ConfigArgument, DataDir, Debug, Overrides
from coterie.cli.printing import cell, friendly, plain_table, print_json, standard_output
from coterie.errors import CoterieError

MANY_CLIENTS = 60
"""`coterie show` lists at most so many clients one by one."""


def show(
    config: ConfigArgument = "quickstart",
    overrides: Overrides = None,
    data_dir: DataDir = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Which seed's division; default: the first of the configuration.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the plot of classes by client to this page.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the federation of a configuration: who owns how much of what.

    CONFIG is a YAML file, PRESET the name of a ready-made experiment; without either: the quickstart.
    """
    console = standard_output()
    with friendly(debug, data_dir):
        from coterie import experiment
        from coterie.experiment.newcomers import divide, held_out
        from coterie.federation import build_federation
        from coterie.federation.show import class_grid, class_plot, describe

        settled = experiment.read_config(config, overrides or [])
        fixed = settled.federation.seed
        if seed is not None and fixed not in (None, seed):
            raise CoterieError(
                f"--seed {seed}: federation.seed is {fixed}, so that every seed has the same division; leave it out, "
                f"or add -s federation.seed={seed}."
            )
        used = settled.seeds[0] if seed is None else seed
        drawn = used if fixed is None else fixed
        out = held_out(settled.newcomers, drawn)
        federation = build_federation(settled.federation, seed=used, data_dir=data_dir, held_out=out)
        _, coming = divide(settled.newcomers, federation, drawn)
        newcomers = [] if coming is None else list(coming.names)
        frame = describe(federation)
        if html is not None:
            _write_page(class_plot(federation), html)
        if as_json:
            clients = frame.to_dict(orient="records")
            print_json({"source": dict(federation.source), "clients": clients, "newcomers": newcomers})
            return
        table = plain_table(*map(str, frame.columns))
        for row in frame.head(MANY_CLIENTS).itertuples(index=False):
            table.add_row(*map(cell, row))
        console.print(table)
        if len(frame) > MANY_CLIENTS:
            console.print(f"and {len(frame) - MANY_CLIENTS} more; --json lists all", style="dim", highlight=False)
        console.print(class_grid(federation))
        shape = " x ".join(map(str, federation.feature_shape))
        console.print(
            f"\n{federation.k} clients of {federation.source['source']}: inputs {shape}, "
            f"{federation.classes} {'classes' if federation.task == 'classification' else 'targets'}",
            highlight=False,
        )
        if newcomers:
            shown = f"{', '.join(newcomers[:8])}{' ...' if len(newcomers) > 8 else ''}"
            console.print(f"held out as newcomers: {escape(shown)}", highlight=False)
        if html is not None:
            console.print(f"The plot is in {escape(str(html))}", highlight=False)


def _write_page(figure: Any, path: Path) -> None:
    try:
        figure.write_html(path, include_plotlyjs=True)
    except OSError as error:
        raise CoterieError(f"--html {path}: cannot be written ({error.strerror or error}).") from error
