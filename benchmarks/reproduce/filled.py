"""Run directories that hold finished cells: for `coterie compare`, and to go on from with those that are missing."""

from __future__ import annotations

from pathlib import Path

from benchmarks.reproduce.cells import Table, identity, systems
from benchmarks.reproduce.rows import Row, load
from coterie.config import Config
from coterie.errors import CoterieError
from coterie.evaluation import RunKey
from coterie.experiment.plan import plan
from coterie.runs import About, History, Record, RunDirectory
from coterie.yamltext import write_yaml


def as_run(table: Table, path: Path) -> RunDirectory:
    """Write the finished cells as a run directory, each at its reported round, and its curve; without its traffic.

    Raises
    ------
    CoterieError
        There are none, or ``path`` exists.
    """
    rows = load(table)
    whole = {cell.label for cell in table.cells if cell.hash in rows}
    if not whole:
        raise CoterieError(f"No cell of {table.name} has been run: python -m benchmarks.reproduce run {table.name}")
    config = part(table, whole, table.config.seeds)
    run = _written(table, config, path)
    reference, labels = plan(config).reference.key, {each.key: each.label for each in plan(config).systems}
    regression = next(iter(rows.values())).metric in ("mae", "rmse", "mse", "r2")
    About(
        table.name, "regression" if regression else "classification", config.report, config.rounds,
        tuple(config.seeds), tuple(config.targets), labels, reference, config.metric,
    ).write(run)  # fmt: skip
    return run


def begun(table: Table, config: Config, path: Path) -> RunDirectory:
    """Write a run directory of ``config``, a `part` of the table, in which the finished cells need not be run again.

    Raises
    ------
    CoterieError
        ``path`` exists.
    """
    run = _written(table, config, path)
    record = Record.of(run)
    record.finished += list(_finished(table, config))
    record.write()
    return run


def part(table: Table, labels: set[str], seeds: list[int]) -> Config:
    """The table's experiment with some of its systems and seeds; systems keep the labels of the table.

    Without targets: when they were reached would be asked of each client's curve, of which rows hold the mean alone.
    """
    entries = [entry.model_copy(update={"label": label}) for label, entry in systems(table.config) if label in labels]
    return table.config.model_copy(update={"algorithms": entries, "seeds": seeds, "targets": []})


def _written(table: Table, config: Config, path: Path) -> RunDirectory:
    run, history = RunDirectory.create(path, name=table.name), History()
    for key, row in _finished(table, config).items():
        for split, values in (("validation", row.validation), ("test", row.values)):
            if values:
                history.add_clients(*key, row.round, split, row.clients, row.examples, row.metric, values)
        for at, value in row.curve.items():
            if int(at) != row.round:
                history.add(*key, int(at), "test", row.metric, value)
        history.add_timing(*key, row.round, "train", row.seconds)
    history.write(run)
    run.write_config(write_yaml(config.as_dict()))
    return run


def _finished(table: Table, config: Config) -> dict[RunKey, Row]:
    """The finished cells of ``config`` by the keys that they have there."""
    rows = load(table)
    known = {(identity(cell.entry), cell.seed): rows[cell.hash] for cell in table.cells if cell.hash in rows}
    return {
        (*system.key, seed): known[identity(entry), seed]
        for system, (_, entry) in zip(plan(config).systems, systems(config), strict=True)
        for seed in config.seeds
        if (identity(entry), seed) in known
    }
