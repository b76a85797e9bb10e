"""The directory of a search: its configuration, a journal of all trials, tables of them, and the best setting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from coterie.config import Config, parse_config
from coterie.errors import CoterieError
from coterie.evaluation import metric_of
from coterie.runs import RunDirectory
from coterie.runs.atomic import atomic_path, write_json, write_text
from coterie.tuning.trial import Trial
from coterie.yamltext import read_yaml, write_yaml


class Books:
    """What a search leaves behind in ``run``; ``trials`` are those begun so far, ``data`` the digest of each seed's."""

    def __init__(self, run: RunDirectory, trials: list[Trial]) -> None:
        self.run, self.trials = run, trials
        self.data: dict[int, str] = {}

    @classmethod
    def open(cls, path: str | Path) -> tuple[Books, Config]:
        """The books of an earlier search, and its configuration.

        Raises
        ------
        CoterieError
            There is no such search, or a file is damaged.
        """
        run = RunDirectory.open(path)
        books = cls(run, [])
        if not books.config.is_file():
            raise CoterieError(
                f"{run.path} is not the directory of a search (it has no {books.config.name}): give the one that "
                "coterie tune printed."
            )
        config = parse_config(read_yaml(_text(books.config), str(books.config)), where=str(books.config))
        if books.journal.is_file():
            try:
                content = json.loads(_text(books.journal))
                books.trials = [Trial.of(trial) for trial in content["trials"]]
                # an earlier version noted no data
                books.data = {int(seed): str(digest) for seed, digest in content.get("data", {}).items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CoterieError(
                    f"{books.journal} is damaged: delete it to try every setting of {run.path} again."
                ) from error
        return books, config

    @property
    def config(self) -> Path:
        """The experiment with its section ``tune``, ``tune.yaml``."""
        return self.run.path / "tune.yaml"

    @property
    def journal(self) -> Path:
        """All trials, finished or not, ``trials.json``: what a search goes on from."""
        return self.run.path / "trials.json"

    @property
    def best(self) -> Path:
        """An experiment with the best settings, ``best.yaml``."""
        return self.run.path / "best.yaml"

    def write_config(self, config: Config) -> None:
        """Keep what is searched; raises CoterieError when it cannot be written."""
        write_text(self.config, write_yaml(config.as_dict()))

    def check_data(self, seed: int, digest: str) -> None:
        """Note the data of a seed, or compare them with those that the search began with.

        Raises
        ------
        CoterieError
            They are not the same.
        """
        if self.data.setdefault(seed, digest) != digest:
            raise CoterieError(
                f"The data for seed {seed} are not those that the search in {self.run.path} began with, and scores of "
                "both would be mixed: put the data back (or give the same --data-dir), or start a new search, without "
                "--resume and in another directory."
            )

    def write(self, metric: str, seeds: list[int]) -> None:
        """The journal, then ``trials.parquet`` and ``trials.csv`` with one row a finished trial.

        Raises
        ------
        CoterieError
            A file cannot be written.
        """
        write_json(self.journal, {"data": self.data, "trials": [trial.as_dict() for trial in self.trials]})
        table = pd.DataFrame(rows(self.trials, metric, seeds))
        with atomic_path(self.run.path / "trials.parquet") as temporary:
            _uniform(table).to_parquet(temporary, index=False, compression="zstd")
        with atomic_path(self.run.path / "trials.csv") as temporary:
            table.to_csv(temporary, index=False)


def rows(trials: Sequence[Trial], metric: str, seeds: list[int]) -> list[dict[str, Any]]:
    """One row a finished trial, in the order of the trials: number and method, its setting, what it reached.

    ``validation_<metric>`` is the mean over clients and seeds, ``std`` the standard deviation
    over seeds, ``rounds`` the best rounds in the order of the seeds.
    """
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    numbers: dict[str, int] = {}
    found = []
    for trial in trials:
        numbers[trial.method] = number = numbers.get(trial.method, -1) + 1
        if not trial.finished(seeds):
            continue
        sign = 1 if metric_of(metric).larger_is_better else -1
        found.append(
            {
                "method": trial.method,
                "trial": number,
                **{key: trial.values.get(key) for key in keys},
                f"validation_{metric}": None if trial.score is None else sign * trial.score,
                "std": trial.spread,
                "rounds": " ".join(str(trial.rounds[seed]) for seed in seeds if seed in trial.rounds),
                "seconds": round(trial.seconds, 3),
                "failed": trial.reason,
            }
        )
    return found


def _uniform(table: pd.DataFrame) -> pd.DataFrame:
    """Settings of mixed kinds as text, since a column of a Parquet file has one type."""
    mixed = [name for name in table if len({_kind(value) for value in table[name] if value is not None}) > 1]
    texts: Mapping[str, Any] = {str(name): table[name].map(lambda v: None if v is None else str(v)) for name in mixed}
    return table.assign(**texts)


def _kind(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CoterieError(f"{path} cannot be read ({error}): without it the search cannot go on.") from error
