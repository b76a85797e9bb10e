"""Commands that show what a run directory holds."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from coterie.cli.arguments import Debug
from coterie.cli.printing import friendly, standard_output
from coterie.errors import CoterieError

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, finished or not.")]


def report(
    directory: RunArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Another file than RUN/report.html.", dir_okay=False)
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Also open it in the browser.")] = False,
    debug: Debug = False,
) -> None:
    """Write the page about a run: who gained, from whom, and at what cost.

    It is one file that needs no network. For a run that is not finished, or damaged, it says what is missing.
    """
    console = standard_output()
    with friendly(debug):
        from coterie.reports import open_run
        from coterie.reports.page import page
        from coterie.runs.atomic import write_text
        from coterie.runs.directory import refuse_results

        run = open_run(directory)
        path = output or run.directory.report
        if output is not None:
            if not output.parent.is_dir():
                raise CoterieError(f"--output {output}: there is no folder {output.parent}.")
            refuse_results(output)
            if output.suffix.lower() not in (".html", ".htm"):
                raise CoterieError(f"--output {output}: the page is a file that ends in .html.")
        write_text(path, page(run))
        for sentence in run.missing[:5]:
            console.print(escape(sentence), highlight=False, soft_wrap=True)
        if len(run.missing) > 5:
            console.print(f"and {len(run.missing) - 5} more such sentences, on the page", highlight=False)
        console.print(f"Look at {escape(str(path))}", highlight=False, soft_wrap=True)
        if show:
            webbrowser.open(path.resolve().as_uri())
