"""A run as its directory tells it, finished or not, whole or damaged."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation import Reported, RunKey, System, Tables, metric_of, reported, summarise
from coterie.evaluation.tables import CLIENTS, FAILURES, HISTORY, TIMINGS, UNDEFINED, nothing
from coterie.runs import About, RunDirectory
from coterie.yamltext import read_yaml

Value = TypeVar("Value")


@dataclass(frozen=True)
class OpenedRun:
    """What a run directory holds; open one with `open_run`.

    Attributes
    ----------
    directory : RunDirectory
    about : About
        Name, task, protocol and labels of the experiment.
    tables : Tables
        All numbers; a table whose file is missing or damaged is empty.
    results : dict
        By (algorithm, variant, seed), what each run reaches at its reported round so far.
    portrait : dict, optional
        The clients' data (``federation.json``).
    missing : tuple of str
        What is not there, one sentence each; empty for a finished run.
    """

    directory: RunDirectory
    about: About
    tables: Tables
    results: dict[RunKey, Reported]
    portrait: dict[str, Any] | None
    missing: tuple[str, ...] = ()

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of ``summary.json``, computed from the tables, so that an unfinished run has them too.

        Raises
        ------
        CoterieError
            The systems of the run cannot be compared.
        """
        about = self.about
        return summarise(
            self.tables,
            task=about.task,
            report=about.report,
            targets=about.targets,
            reference=about.reference,
            labels=about.labels,
            metric=about.chosen,
        )

    @property
    def metric(self) -> str:
        """In which results are reported: ``accuracy``, ``mae`` for a regression, or another one that was chosen."""
        return self.about.metric

    @property
    def larger_is_better(self) -> bool:
        """Whether a larger value of the metric is better."""
        return metric_of(self.metric).larger_is_better

    @property
    def in_points(self) -> bool:
        """Whether gains are percentage points."""
        return metric_of(self.metric).is_share

    @property
    def systems(self) -> list[System]:
        """Those that have results, in the order of the experiment."""
        found = list(dict.fromkeys(key[:2] for key in self.results))
        order = {system: place for place, system in enumerate(self.about.labels)}
        return sorted(found, key=lambda system: order.get(system, len(order)))

    @cached_property
    def divided_once(self) -> bool:
        """Whether all seeds have the same data: there is one seed, or ``federation.seed`` is set."""
        if len(self.about.seeds) < 2:
            return True
        try:
            tree = read_yaml(self.directory.config.read_text(encoding="utf-8"), "config.yaml")
            return tree["federation"].get("seed") is not None
        except (OSError, CoterieError, KeyError, TypeError, AttributeError):
            return False

    def seeds(self, system: System) -> list[int]:
        """The seeds with which a system has results."""
        return [key[2] for key in self.results if key[:2] == system]

    def of_seed(self, seed: int | None) -> OpenedRun:
        """The run as if it had that seed alone, or as it is."""
        if seed is None:
            return self
        history = self.tables.history[self.tables.history["seed"] == seed]
        results = {key: found for key, found in self.results.items() if key[2] == seed}
        return replace(self, tables=replace(self.tables, history=history), results=results)


def open_run(path: Path | str) -> OpenedRun:
    """Read a run directory; whatever is missing or damaged is named in ``missing``, and the rest is there.

    Raises
    ------
    CoterieError
        ``path`` is no run directory.
    """
    directory = RunDirectory.open(path)
    missing: list[str] = []

    def attempt(read: Callable[[], Value], otherwise: Value) -> Value:
        try:
            return read()
        except CoterieError as error:
            missing.append(str(error))
            return otherwise

    tables = Tables(
        attempt(lambda: _parquet(directory.history, HISTORY), nothing(HISTORY)),
        attempt(lambda: _parquet(directory.clients, CLIENTS), nothing(CLIENTS)),
        attempt(lambda: _parquet(directory.timings, TIMINGS), nothing(TIMINGS)),
        attempt(lambda: _texts(directory.failures, FAILURES), nothing(FAILURES)),
        attempt(lambda: _texts(directory.undefined, UNDEFINED), nothing(UNDEFINED)),
    )
    about = attempt(lambda: About.read(directory), None) or About.guessed(directory, tables.clients)
    results: dict[RunKey, Reported] = {}
    results = attempt(lambda: reported(tables.clients, about.metric, about.report, tables.undefined), results)
    missing += _unfinished(about, tables, results)
    portrait = attempt(lambda: _portrait(directory.federation), None)
    return OpenedRun(directory, about, tables, results, portrait, tuple(dict.fromkeys(missing)))


def _unfinished(about: About, tables: Tables, results: dict[RunKey, Reported]) -> list[str]:
    """A sentence for each run that has not begun, or not come to its last round."""
    sentences = []
    reached = tables.history.groupby(["algorithm", "variant", "seed"], observed=True)["round"].max().to_dict()
    for seed in about.seeds:
        for system, label in about.labels.items():
            key = (*system, seed)
            if key not in results:
                sentences.append(f"{label}, seed {seed}: no results yet.")
            elif (last := int(reached.get(key, 0))) < about.rounds:
                sentences.append(f"{label}, seed {seed}: {last} of {about.rounds} rounds.")
    return sentences


def _parquet(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(io.BytesIO(path.read_bytes()))  # at one go: the run may replace the file meanwhile
        return frame[list(columns)]
    except FileNotFoundError as error:
        raise CoterieError(f"{path.name} is missing: the run has not come to its first checkpoint.") from error
    except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are among them
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CoterieError(f"{path.name} is damaged ({reason}).") from error


def _texts(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        texts = {name: str for name in columns if name not in ("seed", "round")}
        return pd.read_csv(path, dtype=texts, keep_default_na=False)[list(columns)]
    except FileNotFoundError:
        return nothing(columns)  # written with the other tables, whose absence is said already
    except (OSError, ValueError, KeyError) as error:
        raise CoterieError(f"{path.name} is damaged ({str(error).splitlines()[0]}).") from error


def _portrait(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("names"), list):
            raise ValueError("it does not name the clients")
        return content
    except FileNotFoundError as error:
        raise CoterieError("federation.json is missing, so the clients' data are not shown.") from error
    except (OSError, ValueError) as error:
        raise CoterieError(f"federation.json is damaged ({error}).") from error
