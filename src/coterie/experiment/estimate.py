"""What an experiment will cost, measured on a few real rounds of each method."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from torch import Tensor

from coterie.config import Config
from coterie.engines import Engine
from coterie.experiment.experiment import Experiment
from coterie.experiment.guarding import guards, section
from coterie.experiment.plan import Job
from coterie.experiment.processes import how_many
from coterie.experiment.sharing import chosen_share, grouped
from coterie.federation.build import settled
from coterie.yamltext import write_yaml

PATIENCE = 2.0
"""Seconds of training after which a method is measured well enough; at least one round, at most ``MANY``."""

MANY = 6

OVERHEAD = 600e6
"""Bytes of Python, torch and the other libraries."""

ROW_BYTES = 6.0
"""Bytes of one row of the per-client table, compressed."""


@dataclass(frozen=True)
class Cost:
    """The cost of one method over all rounds and one seed.

    Attributes
    ----------
    seconds : float
        Time.
    memory : float
        Bytes at the peak, libraries included.
    models, server, checkpoint, history : float
        Bytes on disk; the checkpoint is deleted when the run is over.
    """

    seconds: float
    memory: float
    models: float
    server: float
    checkpoint: float
    history: float


def dry_run(config: Config, data_dir: Path | None = None) -> tuple[str, Table]:
    """The resolved configuration as YAML, and a table of estimated time, memory and disk.

    A few rounds of each method are run to measure them; nothing is written.

    Raises
    ------
    CoterieError
        Whatever would stop the run from beginning.
    """
    experiment = Experiment(config, data_dir=data_dir)
    experiment.check()
    seed = config.seeds[0]
    costs = {system.label: measure(experiment, Job(system, seed)) for system in experiment.plan.systems}
    if guards(experiment.plan):
        costs |= _guard(experiment, costs)
    share = chosen_share(experiment)
    experiment.settle({"share": share})
    count, _ = how_many(experiment, len(grouped(experiment, list(experiment.plan))), share)
    federation = settled(config.federation, seed=seed, data_dir=data_dir)
    resolved = experiment.config.model_copy(update={"federation": federation})
    return write_yaml(resolved.as_dict()), _table(costs, len(config.seeds), count, share)


def _guard(experiment: Experiment, costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """What the guard costs beside: its folds, and one more model a client for each guarded system."""
    folds, systems = section(experiment.config).folds, experiment.plan.systems
    if not folds:
        return {}
    guarded = [costs[system.label] for system in systems if system.guarded]
    names = {system.algorithm for system in systems if system.guarded} | {experiment.plan.reference.algorithm}
    again = [costs[system.label] for system in systems if system.algorithm in names]
    return {
        f"guard, {folds} folds": Cost(
            seconds=folds * sum(cost.seconds for cost in again),
            memory=max(cost.memory for cost in again),
            models=sum(cost.models for cost in guarded),
            server=0.0,
            checkpoint=max(cost.checkpoint for cost in again),
            history=folds * sum(cost.history for cost in again),
        )
    }


def measure(experiment: Experiment, job: Job) -> Cost:
    """Run a few rounds of one job and extrapolate."""
    with experiment.engine(job) as engine:
        return _extrapolated(experiment, engine)


def _extrapolated(experiment: Experiment, engine: Engine) -> Cost:
    config = experiment.config
    experiment.settle(engine.resolved)
    begin = time.perf_counter()
    evaluation_rows = sum(len(metrics) * engine.K for metrics in engine.initial_report().evaluations.values())
    evaluate = time.perf_counter() - begin
    # The first round warms caches and meets the clients; what all will be like is the median of the next.
    rounds = [engine.advance().seconds["train"]]
    while sum(rounds) < PATIENCE and len(rounds) < MANY and not engine.finished:
        rounds.append(engine.advance().seconds["train"])
    first, later = rounds[0], statistics.median(rounds[1:] or rounds)
    evaluations = 1 + math.ceil(config.rounds / config.evaluate_every)
    whole = engine.state_dict()
    state, server = _bytes(whole), _bytes(whole["server"])
    kept = engine.report_models().tensors.values() if config.save_models else ()
    models = float(sum(tensor[:1].numel() * tensor.element_size() * engine.K for tensor in kept))
    return Cost(
        seconds=first + later * (config.rounds - 1) + evaluate * evaluations,
        memory=OVERHEAD + state + 0.3 * models + _data_bytes(experiment),
        models=models,
        server=server if config.save_server else 0.0,
        checkpoint=state,
        history=evaluation_rows * evaluations * ROW_BYTES,
    )


def _bytes(tree: Any) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in _tensors(tree)))


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def _data_bytes(experiment: Experiment) -> float:
    federation = experiment.federation(experiment.config.seeds[0])
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for split in (federation.train, federation.validation, federation.test)
        for tensor in (split.inputs, split.targets)
    }
    return float(sum(storages.values()))


def _table(costs: Mapping[str, Cost], seeds: int, processes: int, share: int) -> Table:
    table = Table(
        title="Estimate from a few measured rounds",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
    )
    table.add_column("method")
    for column in ("time", "memory", "models", "server", "history"):
        table.add_column(column, justify="right")
    for label, cost in costs.items():
        table.add_row(
            label,
            _duration(cost.seconds * seeds),
            decimal(int(cost.memory)),
            decimal(int(cost.models * seeds)),
            decimal(int(cost.server * seeds)),
            decimal(int(cost.history * seeds)),
        )
    every = list(costs.values())
    table.add_section()
    table.add_row(
        f"all, {seeds} seed{'s' if seeds > 1 else ''}",
        _duration(sum(cost.seconds for cost in every) * seeds / processes),
        decimal(int(max(cost.memory for cost in every)) * processes),
        decimal(int(sum(cost.models for cost in every) * seeds)),
        decimal(int(sum(cost.server for cost in every) * seeds)),
        decimal(int(sum(cost.history for cost in every) * seeds)),
        style="bold",
    )
    together = f"go on {processes} at a time" if processes > 1 else "go on one after the other"
    times = f", times {processes}" if processes > 1 else ""
    shared = f"{share} seeds share a stack, which takes less time than they would one by one. " if share > 1 else ""
    table.caption = (
        f"Runs {together}. {shared}Memory is the largest of all{times}. "
        f"A checkpoint takes up to {decimal(int(max(c.checkpoint for c in every)))} while a method runs."
    )
    table.caption_justify = "left"
    return table


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
