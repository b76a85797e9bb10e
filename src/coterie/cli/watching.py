"""The command that watches a run."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from coterie.cli.arguments import AsJson, Debug
from coterie.cli.printing import friendly, print_json, standard_output
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.reports.watching import Watcher

PORT = 8642


def watch(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory, going on or finished.")],
    web: Annotated[
        bool, typer.Option("--web", help="A page for the browser of this machine instead, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"Port of the page; default: {PORT}; 0: any that is free.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Show how it stands, and stop; as always in a pipe or file without --keep.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Go on when the run is over, until Ctrl-C; in a pipe or file: a view a round until the run is over.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a run directory that is not there yet.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Watch a run while it goes on: rounds, results, gain, time left, and who failed.

    Everything is read from the run directory, whichever process or machine writes it; the run does not notice.
    Numbers are as fresh as its last checkpoint. Ends with the run, or by Ctrl-C, which does not touch the run.
    """
    console = standard_output()
    with friendly(debug):
        if (web or keep) and (once or as_json):
            going = "--web goes on until Ctrl-C" if web else "--keep goes on"
            raise CoterieError(f"{going}: leave it out, or leave out --once and --json.")
        if port is not None and not web:
            raise CoterieError("--port is the page's: add --web.")
        if not directory.exists() and not wait:
            raise CoterieError(
                f"There is no run directory {directory}: give the directory that `coterie run` printed, or add --wait."
            )
        try:
            with console.status("Loading") if console.is_terminal else nullcontext():
                from coterie.reports.watching import Watcher, print_views, view
            if wait:
                _await(console, directory, quiet=as_json)
            watcher = Watcher(directory)
            if web:
                _serve(console, watcher, PORT if port is None else port)
            elif as_json:
                print_json(watcher.look().as_dict())
            elif console.is_terminal and not once:
                _follow(console, watcher, keep)
            elif keep:
                print_views(console, watcher)
            else:
                console.print(view(watcher.look()))
        except KeyboardInterrupt:
            console.print("Stopped watching; the run does not notice.", highlight=False)


def _await(console: Console, directory: Path, *, quiet: bool) -> None:
    """Wait until there is a run directory."""
    from coterie.runs import RunDirectory

    told = quiet
    while True:
        try:
            RunDirectory.open(directory)
            return
        except CoterieError:
            if not told:
                where = escape(str(directory))
                console.print(f"Waiting for a run in {where}; Ctrl-C ends the waiting.", highlight=False)
            told = True
            time.sleep(1)


def _follow(console: Console, watcher: Watcher, keep: bool) -> None:
    """Watch in the terminal; then the table that the run ends with, or the last view."""
    from coterie.reports.watching import follow, view
    from coterie.runs import result_table

    try:
        follow(console, watcher, keep=keep)
    except KeyboardInterrupt:
        console.print(view(watcher.look(), height=console.height))
        raise
    console.print(result_table(watcher.run.rows, title=watcher.run.about.name))


def _serve(console: Console, watcher: Watcher, port: int) -> None:
    """Serve the page until Ctrl-C."""
    from coterie.reports.watching import serving

    with serving(watcher, port) as server:
        console.print(f"The page is http://127.0.0.1:{server.server_port}/; Ctrl-C ends it.", highlight=False)
        server.serve_forever()
