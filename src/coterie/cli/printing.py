"""What every command does with a person's mistakes, and with its own output."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.errors import CoterieError, CoterieWarning, Interrupted
from coterie.signals import signals_held


@contextmanager
def friendly(debug: bool, data_dir: Path | None = None) -> Iterator[None]:
    """One sentence and exit code 2 for a mistake; where to go on, and the shell's code, after a stop.

    A warning of Coterie's is one sentence too, without the place in the code that gave it.
    """
    say = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, CoterieWarning):
            say(f"[bold yellow]note:[/] {escape(str(message))}")
        else:
            usual(message, category, *place, **more)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    except CoterieError as error:
        if debug:
            raise
        say(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(2) from None
    except SystemExit as error:  # ours is typer.Exit
        if debug:
            raise
        say("[bold red]error:[/] code of a method or another extension called sys.exit; raise an error there")
        raise typer.Exit(2) from error
    except KeyboardInterrupt as stop:
        if isinstance(stop, Interrupted):
            from coterie.experiment import resume_command

            again = resume_command(stop.path, data_dir, stop.command)
            say(f"Stopped after saving; continue with: [bold]{escape(again)}[/]")
            raise typer.Exit(stop.exit_code) from None
        say(
            "Stopped at once; a run that has begun continues from its last checkpoint with coterie resume, a "
            "search with coterie tune --resume."
        )
        raise typer.Exit(130) from None


class _Output(Console):
    """Standard output whose reader may leave early (``| head``): the experiment goes on, unseen."""

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def standard_output() -> Console:
    """Standard output; wide enough for the result table where there is no terminal to ask."""
    console = _Output(emoji=False)  # a name such as a:b:c is no picture
    return console if console.is_terminal else _Output(width=max(console.width, 120), emoji=False)


def loaded(console: Console, quiet: bool) -> ModuleType:
    """The package ``coterie.experiment``; torch takes its seconds, so say that something happens."""
    with signals_held(signal.SIGINT), console.status("Loading") if console.is_terminal and not quiet else nullcontext():
        return import_module("coterie.experiment")


def plain_table(*columns: str) -> Table:
    """An empty table without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for position, column in enumerate(columns):
        # a path longer than its column is broken, not cut
        table.add_column(escape(column), no_wrap=position == 0, overflow="ellipsis" if position == 0 else "fold")
    return table


def cell(value: Any) -> str:
    """A value as a cell of a table, written as in YAML; nothing for None."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def print_json(value: Any) -> None:
    """A value for programs, on standard output."""
    sys.stdout.write(json_text(value))


def json_text(value: Any) -> str:
    """A value as strict JSON, which knows no NaN and no infinity: these are null."""
    text = json.dumps(
        _known(value), indent=2, ensure_ascii=False, allow_nan=False, default=lambda number: _known(number.item())
    )
    return text + "\n"


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
