"""What an experiment is, on disk: ``about.json`` lets a reader of the tables name what it sees."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation.catalogue import main_metric
from coterie.evaluation.protocol import Report
from coterie.evaluation.reported import System, default_label
from coterie.evaluation.tables import Task
from coterie.runs.atomic import write_json
from coterie.runs.directory import RunDirectory


@dataclass(frozen=True)
class About:
    """What an experiment is.

    Attributes
    ----------
    name : str
        The experiment's name.
    task : str
        ``classification`` or ``regression``.
    report : str
        The protocol that chooses the reported round.
    rounds : int
        How many rounds each run shall have.
    seeds : tuple of int
    targets : tuple of float
        Test results of which the summary says how many rounds they take.
    labels : dict
        Names to print, by system, in the order of the experiment.
    reference : (str, str)
        The system that trains alone.
    chosen : str, optional
        The configuration's ``metric``, where it has one.
    """

    name: str
    task: Task
    report: Report
    rounds: int
    seeds: tuple[int, ...]
    targets: tuple[float, ...]
    labels: dict[System, str]
    reference: System
    chosen: str | None = None

    @property
    def metric(self) -> str:
        """In which results are reported: ``accuracy``, ``mae`` for a regression, or another one that was chosen."""
        return main_metric(self.task, self.chosen)

    def write(self, run: RunDirectory) -> None:
        """Write ``about.json`` in one step; raises CoterieError when that is impossible."""
        systems = [
            {"algorithm": name, "variant": variant, "label": label} for (name, variant), label in self.labels.items()
        ]
        write_json(run.about, {**asdict(self), "labels": systems})

    @classmethod
    def read(cls, run: RunDirectory) -> About:
        """Read what `write` wrote.

        Raises
        ------
        CoterieError
            There is none, or it is damaged.
        """
        try:
            content: dict[str, Any] = json.loads(run.about.read_text(encoding="utf-8"))
            labels = {(row["algorithm"], row["variant"]): row["label"] for row in content.pop("labels")}
            lists: dict[str, Any] = {key: tuple(content.pop(key)) for key in ("seeds", "targets", "reference")}
            return cls(labels=labels, **lists, **content)
        except FileNotFoundError as error:
            raise CoterieError(f"{run.path} has no about.json, so it does not say what was compared.") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CoterieError(f"{run.about} is damaged ({error}).") from error

    @classmethod
    def guessed(cls, run: RunDirectory, clients: pd.DataFrame) -> About:
        """What the tables themselves tell, where ``about.json`` is missing: default names, the last round."""
        systems = clients[["algorithm", "variant"]].drop_duplicates().itertuples(index=False)
        labels = {(str(name), str(variant)): default_label((str(name), str(variant))) for name, variant in systems}
        task: Task = "regression" if "mae" in set(clients["metric"]) else "classification"
        validated = bool(((clients["split"] == "validation") & (clients["n"] > 0)).any())
        seeds = tuple(sorted({int(seed) for seed in clients["seed"]}))
        rounds = int(clients["round"].max()) if len(clients) else 0
        report: Report = "best_val" if validated else "last"
        return cls(run.path.name, task, report, rounds, seeds, (), labels, ("local", ""))

    def label(self, system: System) -> str:
        """The name to print of a system."""
        return self.labels.get(system) or default_label(system)
