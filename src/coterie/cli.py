"""The ``coterie`` command: it reads arguments, calls the package and prints; what it does lives elsewhere.

Everything heavy is imported inside the commands, so that ``--help`` and the listings answer at once.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from coterie.errors import CoterieError, CoterieWarning, Interrupted

app = typer.Typer(
    name="coterie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Personalised federated learning in which every client ends better off than alone.\n\n"
        "[bold]coterie run[/] trains the quickstart: rotated digits, four methods, three seeds, "
        "one to two minutes. "
        "[bold]coterie presets[/] lists the experiments of the papers."
    ),
)

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


MANY_CLIENTS = 60
"""`coterie show` lists at most so many clients one by one."""


def main() -> None:
    """Entry point of the ``coterie`` command; ``module:name`` is also looked for in the current folder."""
    sys.path.append(os.getcwd())
    app()


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Personalised federated learning in which every client ends better off than alone."""
    if version:
        import coterie

        print(f"coterie {coterie.__version__}")
        raise typer.Exit


@app.command()
def run(
    config: ConfigArgument = "quickstart",
    overrides: Overrides = None,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run directory; default: runs/<name>-<n>.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run directory.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = None,
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
    console = _console()
    with _friendly(debug, data_dir):
        experiment = _loaded(console, quiet)
        if dry_run:
            from coterie.experiment.estimate import dry_run as estimate

            settled = experiment.read_config(config, overrides or [], device)
            text, table = estimate(settled, data_dir)
            console.print(Syntax(text, "yaml", background_color="default"))
            console.print(table)
            return
        result = experiment.run(
            config,
            overrides or [],
            data_dir=data_dir,
            output=output,
            overwrite=overwrite,
            device=device,
            console=None if quiet else console,
        )
        _print_result(console, result)


@app.command()
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
    console = _console()
    with _friendly(debug, data_dir):
        experiment = _loaded(console, quiet)
        _print_result(console, experiment.resume(directory, data_dir=data_dir, console=None if quiet else console))


@app.command()
def adapt(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of a finished experiment.")],
    newcomers: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML file whose section federation describes the newcomers; default: those that RUN held out.",
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
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder; default: RUN/adapted-<n>.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Let newcomers join a finished run: with labels they train on, without they predict with what they receive.

    Newcomers are clients that RUN held out (its section newcomers), or those of another configuration.
    """
    console = _console()
    with _friendly(debug, data_dir):
        experiment = _loaded(console, quiet or as_json)
        result = experiment.adapt(
            directory,
            newcomers,
            overrides or [],
            algorithms=algorithm or [],
            data_dir=data_dir,
            output=output,
            console=None if quiet or as_json else console,
        )
        if as_json:
            _print_json(result.rows)
            return
        console.print(result.table())
        for remark in result.remarks:
            console.print(escape(remark), highlight=False, soft_wrap=True)
        console.print(f"Tables and models are in {escape(str(result.directory))}", highlight=False, soft_wrap=True)


@app.command()
def show(
    config: ConfigArgument = "quickstart",
    overrides: Overrides = None,
    data_dir: DataDir = None,
    seed: Annotated[
        int | None, typer.Option(help="Which seed's division; default: the first of the configuration.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the plot of classes by client to this page.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the federation of a configuration: who owns how much of what.

    CONFIG is a YAML file, PRESET the name of a ready-made experiment; without either: the quickstart.
    """
    console = _console()
    with _friendly(debug, data_dir):
        from coterie import experiment
        from coterie.experiment.newcomers import divide
        from coterie.federation import build_federation
        from coterie.federation.show import class_grid, class_plot, describe

        settled = experiment.read_config(config, overrides or [])
        used = settled.seeds[0] if seed is None else seed
        federation = build_federation(settled.federation, seed=used, data_dir=data_dir)
        fixed = settled.federation.seed
        _, coming = divide(settled.newcomers, federation, used if fixed is None else fixed)
        newcomers = [] if coming is None else list(coming.names)
        frame = describe(federation)
        if html is not None:
            _write_page(class_plot(federation), html)
        if as_json:
            clients = frame.to_dict(orient="records")
            _print_json({"source": dict(federation.source), "clients": clients, "newcomers": newcomers})
            return
        table = _table(*map(str, frame.columns))
        for row in frame.head(MANY_CLIENTS).itertuples(index=False):
            table.add_row(*map(_cell, row))
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


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="One method, with its options.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the methods, or explain one.

    With NAME: its paper, its variants and every option with its default.
    """
    console = _console()
    with _friendly(debug):
        from coterie.experiment.catalogue import algorithm_cards

        cards = algorithm_cards(name)
        if as_json:
            _print_json(cards if name is None else cards[0])
        elif name is None:
            table = _table("name", "method", "variants")
            for card in cards:
                table.add_row(card["name"], card["title"], ", ".join(card["variants"]))
            console.print(table)
            console.print("Options of one: coterie algorithms NAME", style="dim", highlight=False)
        else:
            _print_card(console, cards[0])


@app.command()
def datasets(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the data sources, and the rules that divide them among clients."""
    console = _console()
    with _friendly(debug):
        from coterie.federation import available_rules
        from coterie.federation.datasets import SOURCES

        sources = [{"name": n, "about": SOURCES[n].description, "files": SOURCES[n].files} for n in sorted(SOURCES)]
        rules = [{"name": name, "about": about} for name, about in available_rules().items()]
        if as_json:
            _print_json({"sources": sources, "rules": rules})
            return
        for columns, rows in (
            (("source", "federation.source", "files, below the data directory"), sources),
            (("rule", "federation.partition.rule"), rules),
        ):
            table = _table(*columns)
            for row in rows:
                table.add_row(*(escape(text) for text in row.values()))
            console.print(table)


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="One preset, NAME or NAME:fast: print its YAML.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the ready-made experiments with their cost, or print one as a start for your own.

    [bold]coterie presets quickstart > mine.yaml[/] gives a file to change and run. The cost is the time on two cores,
    of the published setting (full) and of a small one (fast).
    """
    console = _console()
    with _friendly(debug):
        from coterie.presets import FAST, FULL, available_presets, find_preset

        if name is not None:
            preset = find_preset(name)
            if as_json:
                _print_json({**_preset_row(preset), "size": preset.size, "yaml": preset.text})
            elif console.is_terminal:
                console.print(Syntax(preset.text.rstrip(), "yaml", background_color="default"))
            else:
                sys.stdout.write(preset.text)
            return
        found = available_presets()
        if as_json:
            _print_json([_preset_row(preset) for preset in found])
            return
        table = _table("name", "experiment", FULL, FAST)
        for preset in found:
            table.add_row(preset.name, preset.description, preset.costs[FULL], preset.costs.get(FAST, ""))
        console.print(table)
        console.print(
            "Times on two cores. Run one: coterie run NAME, or NAME:fast. See one: coterie presets NAME",
            style="dim",
            highlight=False,
        )


def _preset_row(preset: Any) -> dict[str, Any]:
    return {"name": preset.name, "about": preset.description, "cost": dict(preset.costs)}


@contextmanager
def _friendly(debug: bool, data_dir: Path | None = None) -> Iterator[None]:
    """One sentence and exit code 2 for a mistake; where to go on, and the shell's code, after a stop.

    A warning of Coterie's is one sentence too, without the place in the code that gave it.
    """
    say = Console(stderr=True, soft_wrap=True, highlight=False).print
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
    except KeyboardInterrupt as stop:
        if isinstance(stop, Interrupted):
            from coterie.experiment import resume_command

            again = resume_command(stop.path, data_dir)
            say(f"Stopped after saving; continue with: [bold]{escape(again)}[/]")
            raise typer.Exit(stop.exit_code) from None
        say("Stopped at once; a run that has begun continues from its last checkpoint with coterie resume.")
        raise typer.Exit(130) from None


class _Output(Console):
    """Standard output whose reader may leave early (``| head``): the experiment goes on, unseen."""

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console() -> Console:
    """Standard output; wide enough for the result table where there is no terminal to ask."""
    console = _Output()
    return console if console.is_terminal else _Output(width=max(console.width, 120))


def _loaded(console: Console, quiet: bool) -> ModuleType:
    """The package ``coterie.experiment``; torch takes its seconds, so say that something happens."""
    if console.is_terminal and not quiet:
        with console.status("Loading"):
            return import_module("coterie.experiment")
    return import_module("coterie.experiment")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for position, column in enumerate(columns):
        # a path longer than its column is broken, not cut
        table.add_column(escape(column), no_wrap=position == 0, overflow="ellipsis" if position == 0 else "fold")
    return table


def _cell(value: Any) -> str:
    """A value as a cell of a table; nothing for None."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, default=lambda item: item.item())
    sys.stdout.write("\n")


def _print_result(console: Console, result: Any) -> None:
    console.print()
    console.print(result.table())
    if result.newcomers:
        console.print()
        console.print(result.newcomers_table())
    for remark in result.remarks:
        console.print(escape(remark), highlight=False, soft_wrap=True)
    console.print(f"Everything about this run is in {escape(str(result.directory))}", highlight=False, soft_wrap=True)
    if result.diverged:
        raise CoterieError(f"not every run reached its end: {'; '.join(result.diverged)}")


def _print_card(console: Console, card: dict[str, Any]) -> None:
    console.print(f"[bold]{card['name']}[/]  {escape(card['title'])}")
    for line in (card["paper"], "", *card["about"].splitlines()):
        console.print(escape(line), highlight=False)
    if card["evaluated"]:
        console.print(f"\nEvaluated: {escape(card['evaluated'])}", highlight=False)
    if not card["options"]:
        console.print("\nNo options.")
        return
    table = _table("option", "type", "default", *card["variants"])
    for option in card["options"]:
        values = (_cell(option["variants"].get(variant)) for variant in card["variants"])
        table.add_row(option["name"], escape(option["type"]), _cell(option["default"]), *values)
    console.print()
    console.print(table)


def _write_page(figure: Any, path: Path) -> None:
    try:
        figure.write_html(path, include_plotlyjs=True)
    except OSError as error:
        raise CoterieError(f"--html {path}: cannot be written ({error.strerror or error}).") from error
