"""Run the cells that are not there yet, and take the finished ones out of run directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console

from benchmarks.reproduce.cells import Cell, Table, identity, recipe, systems
from benchmarks.reproduce.filled import begun, part
from benchmarks.reproduce.rows import Row, append, load
from coterie.config import Config
from coterie.errors import CoterieError
from coterie.evaluation import RunKey
from coterie.experiment import read_config, resume
from coterie.experiment.plan import REFERENCE, plan
from coterie.reports import OpenedRun, open_run
from coterie.runs import Record, RunDirectory


def missing(table: Table) -> list[Cell]:
    """The cells without a row."""
    there = load(table)
    return [cell for cell in table.cells if cell.hash not in there]


def collect(table: Table, directory: Path) -> int:
    """Add the finished cells of a run directory, which may still be running; return how many are new.

    Raises
    ------
    CoterieError
        The run is one of other settings.
    """
    config = read_config(directory / "config.yaml", [])
    if recipe(config) != recipe(table.config):
        raise CoterieError(f"{directory} ran with other settings than table {table.name}: give another folder.")
    opened = open_run(directory)
    finished = set(Record.of(opened.directory).finished)
    cells = {(identity(cell.entry), cell.seed): cell for cell in missing(table)}
    taken = []
    for system, (_, entry) in zip(plan(config).systems, systems(config), strict=True):
        for seed in config.seeds:
            cell, key = cells.get((identity(entry), seed)), (*system.key, seed)
            if cell is not None and key in finished and key in opened.results:
                taken.append((cell, key))
    if taken:
        environment = json.loads((directory / "environment.json").read_text(encoding="utf-8"))
        append(table, [_row(table, cell, opened, key, config, environment) for cell, key in taken])
    return len(taken)


def _row(
    table: Table, cell: Cell, opened: OpenedRun, key: RunKey, config: Config, environment: dict[str, object]
) -> Row:
    result, times, clients = opened.results[key], opened.tables.timings, opened.tables.clients
    validated = clients[_of(clients, key) & (clients["round"] == result.round)]
    validated = validated[(validated["split"] == "validation") & (validated["metric"] == opened.metric)]
    validation = validated.set_index("client")["value"].reindex(result.values.index)
    return Row(
        label=cell.label,
        seed=cell.seed,
        hash=cell.hash,
        command=f"{table.command} (seed {cell.seed})",
        metric=opened.metric,
        mean=round(float(result.values.mean()), 6),
        round=result.round,
        seconds=round(float(times.loc[_of(times, key), "seconds"].sum()), 1),
        device=_device(config, environment),
        version=f"{environment['coterie']} {str(environment.get('commit') or '')[:10]}".strip(),
        clients=[str(name) for name in result.values.index],
        values=_rounded(result.values),
        validation=_rounded(validation) if validation.notna().all() else [],
        examples=[int(count) for count in result.n],
        curve={str(at): round(float(value), 5) for at, value in result.curve.items()},
    )


def _of(frame: pd.DataFrame, key: RunKey) -> pd.Series[bool]:
    return (frame["algorithm"] == key[0]) & (frame["variant"] == key[1]) & (frame["seed"] == key[2])


def _rounded(values: pd.Series[float]) -> list[float]:
    return [round(float(value), 6) for value in values]


def _device(config: Config, environment: dict[str, object]) -> str:
    gpus = environment.get("gpus")
    if config.device.startswith("cuda") and isinstance(gpus, list) and gpus:
        return str(gpus[0])
    return f"{environment['machine']}, {config.threads} thread" + ("s" if config.threads != 1 else "")


def reproduce(
    table: Table,
    folder: Path,
    console: Console,
    *,
    workers: int | None = None,
    seeds: list[int] | None = None,
    labels: list[str] | None = None,
    device: str | None = None,
    data_dir: Path | None = None,
) -> None:
    """Run what is missing of the systems ``labels`` with ``seeds``, by default of all; Ctrl-C keeps what is finished.

    Runs in ``folder`` of which nothing else is unfinished go on first, with the cores and on the device with which
    they were begun.

    Raises
    ------
    CoterieError
        The table has no such system.
    """
    known = list(dict.fromkeys(cell.label for cell in table.cells))
    if strange := [label for label in labels or [] if label not in known]:
        raise CoterieError(f"{table.name} has no system {strange[0]}: choose among {', '.join(known)}.")
    found = _runs(table, folder)
    for directory in found.values():
        console.print(f"{directory}: {collect(table, directory)} new cells")
    asked = {
        cell.hash
        for cell in missing(table)
        if (seeds is None or cell.seed in seeds) and (labels is None or cell.label in labels)
    }
    with_them = asked | {
        cell.hash
        for cell in missing(table)
        if cell.entry.name == REFERENCE and (seeds is None or cell.seed in seeds)  # every run has it
    }
    for directory in found.values():
        left = _left(table, directory)
        if left & asked and left <= with_them:
            console.print(f"{directory}: goes on as it was begun")
            _kept(table, directory, partial(resume, directory, data_dir=data_dir, console=console), console)
        elif left & asked:
            others = len(left - with_them)
            console.print(f"{directory}: left alone; {others} of its {len(left)} unfinished cells are not wanted")
    if not (cells := [cell for cell in missing(table) if cell.hash in asked]):
        return
    told = {"save_models": False, "save_server": False, "page": False, "workers": workers, "device": device}
    config = part(table, {cell.label for cell in cells}, sorted({cell.seed for cell in cells}))
    config = config.model_copy(update={key: value for key, value in told.items() if value is not None})
    directory = folder / f"{table.name}-{max(found, default=0) + 1}"
    begun(table, config, directory)
    console.print(f"{len(cells)} cells: {directory}")
    _kept(table, directory, partial(resume, directory, data_dir=data_dir, console=console), console)


def _runs(table: Table, folder: Path) -> dict[int, Path]:
    """The table's run directories by their numbers."""
    numbers = {path: path.name.removeprefix(f"{table.name}-") for path in folder.glob(f"{table.name}-*")}
    return {int(numbers[path]): path for path in sorted(numbers) if numbers[path].isdecimal()}


def _left(table: Table, directory: Path) -> set[str]:
    """The hashes of the cells that a run has not finished itself; an empty one for those that the table lacks."""
    config, finished = read_config(directory / "config.yaml", []), set(Record.of(RunDirectory.open(directory)).finished)
    known = {(identity(cell.entry), cell.seed): cell.hash for cell in table.cells}
    return {
        known.get((identity(entry), seed), "")
        for system, (_, entry) in zip(plan(config).systems, systems(config), strict=True)
        for seed in config.seeds
        if (*system.key, seed) not in finished
    }


def _kept(table: Table, directory: Path, work: Callable[[], object], console: Console) -> None:
    try:
        work()
    finally:
        if directory.exists():
            console.print(f"{collect(table, directory)} new cells of {directory}")
