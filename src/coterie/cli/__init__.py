"""The ``coterie`` command: it reads arguments, calls the package and prints; what it does lives elsewhere.

Everything heavy is imported inside the commands, so that ``--help`` and the listings answer at once.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from coterie.cli.checks import check
from coterie.cli.comparing import compare
from coterie.cli.deploying import deploy
from coterie.cli.listings import algorithms, cite, datasets, presets
from coterie.cli.plotting import plot
from coterie.cli.production import export, predict
from coterie.cli.reporting import report
from coterie.cli.runs import adapt, resume, run
from coterie.cli.shows import show
from coterie.cli.tuning import tune
from coterie.cli.watching import watch

app = typer.Typer(
    name="coterie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Personalised federated learning, so that every client ends better off than alone.\n\n"
        "[bold]coterie run[/] trains the quickstart: rotated digits, four methods, three seeds, "
        "one to two minutes. "
        "[bold]coterie presets[/] lists the experiments of the papers."
    ),
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Personalised federated learning, so that every client ends better off than alone."""
    if version:
        import coterie

        print(f"coterie {coterie.__version__}")
        raise typer.Exit


_COMMANDS = (
    run, resume, watch, adapt, export, predict, tune, report, compare, plot, show, check, algorithms, cite, datasets,
    presets,
)  # fmt: skip
for command in _COMMANDS:
    app.command()(command)
app.add_typer(deploy)


def main() -> None:
    """Entry point of the ``coterie`` command; ``module:name`` is also looked for in the current folder."""
    sys.path.append(os.getcwd())
    app()
