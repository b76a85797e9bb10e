"""The command that draws figures for papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar
from zlib import crc32

import typer
from rich.console import Console
from rich.markup import escape

from coterie.cli.arguments import Debug
from coterie.cli.printing import friendly, standard_output
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.reports import OpenedRun
    from coterie.reports.figures.choice import Choice

Word = TypeVar("Word", bound=str)

KINDS = ("curves", "gain", "accuracy", "scatter", "relations", "data", "ranks")
FORMATS = ("pdf", "svg", "png")
SYSTEMS = tuple(kind for kind in KINDS if kind not in ("data", "ranks"))

OPTIONS = {
    "split": ("--split", ("curves",)),
    "metric": ("--metric", ("curves", "ranks")),
    "over": ("--over", ("curves",)),
    "shape": ("--as", ("relations",)),
    "matrix": ("--matrix", ("relations",)),
    "against": ("--against", ("scatter",)),
    "systems": ("--system", SYSTEMS),
    "seed": ("--seed", KINDS),
    "rounds": ("--round", ("relations",)),
    "clients": ("--client", ("relations",)),
    "order": ("--order", ("gain", "accuracy", "relations", "data")),
}
"""Of each choice of what is shown: its option, and the kinds that know it."""

LONGEST = 72
"""Characters of a file's name, at most four bytes each: file systems take 255 bytes; what is longer gets a checksum."""


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One run directory, or several to compare.")],
    kind: Annotated[str, typer.Option("--kind", "-k", help=f"{', '.join(KINDS)}, or all there are data for.")] = "all",
    format: Annotated[str | None, typer.Option(help="pdf, svg or png; default: as --output ends, else pdf.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file, or with --kind all the folder; default: RUN/figures/KIND-CHOICES.pdf."
        ),
    ] = None,
    system: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="A method or its label; repeatable; default: all.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="One seed; default: the mean over all.")] = None,
    split: Annotated[str, typer.Option(help="Of curves: test, validation or train.")] = "test",
    metric: Annotated[
        str | None, typer.Option(help="Of curves and ranks: accuracy, loss, ...; default: the run's.")
    ] = None,
    over: Annotated[str, typer.Option(help="Of curves: round, or bytes that have travelled.")] = "round",
    rounds: Annotated[
        str | None,
        typer.Option(
            "--round", "--rounds", metavar="N,N,...", help="Of relations: rounds side by side; default: the last."
        ),
    ] = None,
    shape: Annotated[
        str, typer.Option("--as", help="Of relations: matrix, graph, or weights (of single clients, by round).")
    ] = "matrix",
    matrix: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of relations: which of a method's, such as similarity.")
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of --as weights: whose; repeatable."),
    ] = None,
    against: Annotated[
        str, typer.Option(help="Of scatter: n, similarity, or a column of the clients such as angle.")
    ] = "n",
    order: Annotated[
        str | None,
        typer.Option(
            help="Of clients, but for curves, scatter and ranks: client, value, a column such as angle, and for "
            "relations similar."
        ),
    ] = None,
    width: Annotated[str, typer.Option(help="single or double column, or inches.")] = "single",
    title: Annotated[str | None, typer.Option(help="A title; default: none, as papers have captions.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    debug: Debug = False,
) -> None:
    """Draw figures for a paper from a run, finished or not.

    RUN is a run directory, which [bold]coterie run[/] has printed. Figures that were drawn before are replaced.
    """
    console = standard_output()
    with friendly(debug):
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise CoterieError("coterie plot needs matplotlib: pip install 'coterie[plot]'.") from error
        from coterie.reports import open_run
        from coterie.reports.figures.choice import Choice

        one_of("--kind", kind, (*KINDS, "all"))
        chosen = Choice(
            systems=tuple(system or ()), seed=seed, split=split, metric=metric,
            over=one_of("--over", over, ("round", "bytes")), rounds=_numbers(rounds),
            matrix=matrix, shape=one_of("--as", shape, ("matrix", "graph", "weights")), clients=tuple(client or ()),
            against=against, order=order, width=_inches(width),
        )  # fmt: skip
        _check(kind, chosen)
        ending = _format(format, output, kind)
        opened = [open_run(path) for path in runs]
        _draw(opened, kind, chosen, ending, output, title, None if quiet else console)


def _check(kind: str, choice: Choice) -> None:
    """Raise CoterieError for what is asked for and no figure would show."""
    for option, kinds in (OPTIONS[field] for field in _chosen(choice)):
        if kind not in (*kinds, "all"):
            raise CoterieError(f"{option} is of {', '.join(kinds)}, not of --kind {kind}: leave it out.")
    if choice.clients and choice.shape != "weights":
        raise CoterieError("--client is of --as weights: add it, or leave --client out.")
    if choice.order is not None and kind == "relations" and choice.shape == "weights":
        raise CoterieError("--order is not of --as weights, whose panels are in the order of --client: leave it out.")


def _chosen(choice: Choice) -> list[str]:
    """Which of the options are not as they are by default."""
    usual = type(choice)()
    return [field for field in OPTIONS if getattr(choice, field) != getattr(usual, field)]


def _draw(
    runs: Sequence[OpenedRun], kind: str, choice: Choice, ending: str, output: Path | None, title: str | None,
    console: Console | None,
) -> None:  # fmt: skip
    """Draw and write one kind, or all that there are data for; say what was left out."""
    from coterie.reports.figures.files import save_figure
    from coterie.reports.figures.gathered import check_choice, check_runs
    from coterie.reports.figures.kinds import draw

    if len(runs) > 1 and output is None:
        raise CoterieError("Several runs have no common place for a figure: say where by --output.")
    check_runs(runs)  # once, before each kind says so
    check_choice(runs, choice)
    written, lacking = dict[str, Path](), list[str]()
    for each in KINDS if kind == "all" else (kind,):
        try:
            figure = draw(each, runs, choice)
        except CoterieError as error:
            if kind != "all":
                raise
            lacking.append(f"{each}: {error}")
            continue
        if title:
            figure.suptitle(title)
        name = f"{_name(each, choice)}.{ending}"
        default = runs[0].directory.figures / name
        path = default if output is None else output / name if kind == "all" else output
        save_figure(figure, path, ending)
        written[each] = path
    if not written:
        raise CoterieError(" ".join(lacking))
    if console is None:
        return
    for path in written.values():
        console.print(escape(str(path)), highlight=False, soft_wrap=True)
    remarks = [f"left out {line}" for line in lacking] + _remarks(runs, choice, list(written))
    for sentence in [*remarks, *(each for run in runs for each in run.missing)]:
        console.print(f"[dim]{escape(sentence)}[/]", highlight=False, soft_wrap=True)


def _remarks(runs: Sequence[OpenedRun], choice: Choice, kinds: Sequence[str]) -> list[str]:
    """What to know of bars that are of no single division of the data."""
    from coterie.reports.words import divided_anew

    if choice.seed is not None or not {"gain", "accuracy"} & set(kinds):
        return []
    anew = dict.fromkeys(divided_anew(len(run.about.seeds)) for run in runs if not run.divided_once)
    return [f"{sentence} One division alone: --seed." for sentence in anew]


def _name(kind: str, choice: Choice) -> str:
    """What the file is called: figures of one kind that show something else do not replace each other."""
    from coterie.runs.directory import safe_name

    parts = [kind]
    for field in _chosen(choice):
        if kind in OPTIONS[field][1] and field != "order":
            value = getattr(choice, field)
            numbered = {"seed": "seed", "rounds": "round"}.get(field, "")
            parts.append(numbered + "-".join(map(str, value if isinstance(value, tuple) else (value,))))
    name = safe_name("-".join(parts))
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{crc32(name.encode()):08x}"


def one_of(option: str, word: str, known: tuple[Word, ...]) -> Word:
    """Return ``word`` as one of the words that ``option`` knows; raises CoterieError otherwise."""
    for each in known:
        if each == word:
            return each
    raise CoterieError(f"{option} {word}: choose one of {', '.join(known)}.")


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in (text or "").split(",") if part.strip())
    except ValueError as error:
        raise CoterieError(f"--round {text}: give numbers with commas between them, such as 1,50,100.") from error


def _inches(text: str) -> float:
    from coterie.reports.figures.style import WIDTHS

    if text in WIDTHS:
        return WIDTHS[text]
    try:
        inches = float(text)
    except ValueError:
        inches = 0.0
    if not 1.5 <= inches <= 40:
        raise CoterieError(f"--width {text}: give single, double, or inches between 1.5 and 40.")
    return inches


def _format(stated: str | None, output: Path | None, kind: str) -> str:
    """The format of the files: as stated, else as the name of the one file ends."""
    if stated is not None:
        one_of("--format", stated, FORMATS)
    ending = output.suffix.removeprefix(".").lower() if output is not None else ""
    if kind == "all":
        if ending in FORMATS:
            raise CoterieError(f"--output {output} is one file, but --kind all draws several: add --kind.")
        return stated or "pdf"
    if stated is None:
        return one_of(f"--output {output}: its ending", ending, FORMATS) if ending else "pdf"
    if ending in FORMATS and ending != stated:
        raise CoterieError(f"--format {stated} and --output {output} contradict each other: give one of them.")
    return stated
