"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigArgument = Annotated[
    str,
    typer.Argument(metavar="CONFIG|PRESET", help="A YAML file, or the name of a preset; NAME:fast is its small size."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Change one key, e.g. -s training.lr=0.01 or -s seeds=[0]; repeatable.",
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(envvar="COTERIE_DATA", help="Where data files lie; default: the user's cache.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")]
