"""Do no harm: what a guarded method reports is what each client would keep, its model or the one it trained alone.

The rule is that of `coterie.evaluation.guard`. It sees losses on validation examples only.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pandas as pd

from coterie.config import Config, GuardConfig
from coterie.contract import algorithm_class
from coterie.errors import CoterieError, Interrupted
from coterie.evaluation import Evidence, Judgement, Reported, evidence, judge, main_metric, reported
from coterie.evaluation.paired_auroc import Scored, auroc_evidence
from coterie.evaluation.tables import Task
from coterie.experiment.plan import REFERENCE, Job, Plan, guarded
from coterie.federation.folds import Fold
from coterie.runs import History, Losses, Record, RunDirectory, copy_model, guard_sentences, load_losses, save_guard

if TYPE_CHECKING:
    from rich.console import Console

    from coterie.experiment.experiment import Experiment

Content = TypeVar("Content")

LOSS = {
    "accuracy": "error", "balanced_accuracy": "error", "f1": "error", "loss": "brier", "brier": "brier",
    "calibration": "brier", "auroc": "brier", "auprc": "brier",
    "mae": "absolute", "mse": "squared", "rmse": "squared", "r2": "squared",
}  # fmt: skip
"""By which loss two models are compared, where that is reported."""
BY_PAIRS = ("auroc", "auprc")
"""Of two classes, these are compared by pairs of examples instead."""


def loss_of(metric: str, binary: bool) -> str | None:
    """By which loss two models are compared, where ``metric`` is reported; None where it is by pairs of examples.

    ``binary`` says whether there are two classes; ``mae:1`` has the losses of the target 1 alone.
    """
    base, colon, target = metric.partition(":")
    return None if binary and base in BY_PAIRS else f"{LOSS[base]}{colon}{target}"


UNTOLD = {"page": False, "save_models": False, "save_server": False, "save_relations": "none", "tracking": None}
"""What nobody will look at in the folds."""


def guards(plan: Plan) -> bool:
    """Whether any system is guarded."""
    return any(system.guarded for system in plan.systems)


def section(config: Config) -> GuardConfig:
    """The guard's settings, those by default where only a method's entry asks for it."""
    return config.guard or GuardConfig()


def check_guard(config: Config, guarded: bool) -> None:
    """Refuse what the guard cannot be had with.

    Raises
    ------
    CoterieError
        Names the setting and the remedy.
    """
    if not guarded:
        return
    folds = section(config).folds
    if folds and config.federation.fold is not None:
        raise CoterieError("guard makes folds of its own: remove federation.fold, or set guard.folds: 0.")
    if folds and config.privacy is not None and config.privacy.noise is not None:
        raise CoterieError(
            f"guard trains everything {folds} times more, and each time spends privacy.noise again: set guard.folds: 0."
        )


def fold_config(config: Config, index: int, guarded: set[str]) -> Config:
    """The experiment of one fold: the guarded methods and LOCAL, on other training and validation examples."""
    kept = guarded | {REFERENCE}  # names of methods, which an entry may call by an alias or as module:Class
    entries = [entry for entry in config.algorithms if algorithm_class(entry.name).name in kept]
    newcomers = None if config.newcomers is None else config.newcomers.model_copy(update={"epochs": 0})
    fold = Fold(index=index, of=section(config).folds)
    return config.model_copy(
        update={
            "name": f"{config.name}-fold{index}",
            "algorithms": [entry.model_copy(update={"guard": False}) for entry in entries],
            "federation": config.federation.model_copy(update={"fold": fold}),
            "newcomers": newcomers,
            "guard": None,
            "save_losses": True,
            "output": None,
            **UNTOLD,
        }
    )


def fold_experiment(experiment: Experiment, index: int, names: set[str]) -> Experiment:
    """One fold of an experiment, of the methods with these ``names``."""
    from coterie.experiment.experiment import Experiment

    config = fold_config(experiment.config, index, names)
    return Experiment(config, data_dir=experiment.data_dir, federation=experiment.given)


@dataclass(frozen=True)
class Decision:
    """What the clients of one run decided; arrays as in `Evidence` and `Judgement`."""

    job: Job
    names: tuple[str, ...]
    found: Evidence
    judged: Judgement

    @property
    def rows(self) -> pd.DataFrame:
        """One row a client."""
        return pd.DataFrame(
            {
                "algorithm": self.job.system.algorithm,
                "variant": guarded(self.job.system).variant,
                "seed": self.job.seed,
                "client": self.names,
                "n": self.found.n,
                "difference": self.found.difference,
                "standard_error": np.sqrt(self.found.variance),
                "expected": self.judged.expected,
                "confidence": self.judged.confidence,
                "keeps": np.where(self.judged.keep, "personalised", "local"),
            }
        )


def compared(pairs: Sequence[tuple[Losses, Losses]], loss: str | None) -> Evidence:
    """LOCAL and a method on the same validation examples, by a loss, or by AUROC where that is None; a pair a fold."""
    clients = len(pairs[0][0].names)
    if loss is None:
        return auroc_evidence(
            [
                Scored(alone.values["score"], own.values["score"], own.values["target"] > 0, own.owner)
                for alone, own in pairs
            ],
            clients,
        )
    alone, own = (np.concatenate([pair[side].values[loss] for pair in pairs]) for side in (0, 1))
    return evidence(alone, own, np.concatenate([pair[0].owner for pair in pairs]), clients)


class Guard:
    """The guard of one experiment, once its methods have been trained."""

    def __init__(self, experiment: Experiment, directory: RunDirectory, console: Console | None) -> None:
        self.experiment, self.directory, self.console = experiment, directory, console
        self.systems = [system for system in experiment.plan.systems if system.guarded]
        self.settings = section(experiment.config)

    @property
    def trains(self) -> bool:
        """Whether there are folds to train, so that there is time to stop."""
        return bool(self.systems) and self.settings.folds > 0

    def run(self, history: History) -> list[str]:
        """Train the folds that are left, decide, and enter the guarded systems in ``history``; what was decided.

        Raises
        ------
        CoterieError
            A fold cannot be trained, or a file is damaged.
        Interrupted
            Stopped by a signal, after saving.
        """
        if not self.systems:
            return []
        self._check_data()
        places = self._train()
        decisions = list(self._decide(places))
        reached = self._reached(history)
        books = [history, *(self._read(place, History.read) for place in places if place is not self.directory)]
        for decision in decisions:
            self._enter(history, decision, reached, books)
        table = pd.concat([decision.rows for decision in decisions])
        save_guard(self.directory, table)
        self._settle(decisions)
        labels = {guarded(system).key: guarded(system).label for system in self.systems}
        return guard_sentences(table, labels.__getitem__)

    def _check_data(self) -> None:
        """The folds see the data of the run, also where they are trained in a later sitting."""
        record = Record.of(self.directory)
        for seed in self.experiment.plan.seeds:
            record.check_source(seed, self.experiment.federation(seed).source)

    def _read(self, place: RunDirectory, read: Callable[[RunDirectory], Content]) -> Content:
        """What ``read`` finds in a run directory; a fold that is damaged can be trained again."""
        try:
            return read(place)
        except CoterieError as error:
            if place is self.directory:
                raise
            raise CoterieError(
                f"the guard cannot read the fold {place.path}: delete this folder, then `coterie resume "
                f"{self.directory.path}` trains it again."
            ) from error

    def _train(self) -> list[RunDirectory]:
        """Where the losses lie: one run directory a fold, and the experiment's own, of the models that are kept."""
        names = {system.algorithm for system in self.systems}
        folds = [self._fold(index, names) for index in range(self.settings.folds)]
        validated = self.experiment.federation(self.experiment.config.seeds[0]).validation.total > 0
        return folds + ([self.directory] if validated else [])

    def _fold(self, index: int, names: set[str]) -> RunDirectory:
        """One fold, trained to its end now or before."""
        path, fold = self.directory.guard_fold(index), self._experiment(index, names)
        known = (path / "environment.json").exists()
        if known:
            self._read(RunDirectory(path), History.read)
            record = self._read(RunDirectory(path), Record.of)
            self._check_recipe(record, fold)
            if {job.key for job in fold.plan} <= set(record.finished):
                return RunDirectory(path)
        elif path.exists():  # a kill left it before it was a run directory, so that nothing in it is worth anything
            shutil.rmtree(path)
        if self.console is not None:
            self.console.print(f"Guard, fold {index + 1} of {self.settings.folds}", highlight=False)
        try:
            if known:
                fold.resume(RunDirectory.open(path), console=self.console)
            else:
                fold.run(output=path, console=self.console)
        except Interrupted as stop:
            raise Interrupted(self.directory.path, stop.number) from None
        if fold.stopped is not None and index + 1 < self.settings.folds:  # it came in the fold's last round
            raise Interrupted(self.directory.path, fold.stopped)
        return RunDirectory(path)

    def _check_recipe(self, record: Record, fold: Experiment) -> None:
        """Folds of one division belong together: of others, some examples would count twice and some not at all."""
        try:
            record.check_recipe(fold.recipe())
        except CoterieError as error:
            folder = record.path.parent.parent
            raise CoterieError(
                f"the guard's fold {folder} is one of another division, as guard.folds was another then: set it back, "
                f"or delete {folder.parent}, and all folds are trained again."
            ) from error

    def _experiment(self, index: int, names: set[str]) -> Experiment:
        return fold_experiment(self.experiment, index, names)

    def _decide(self, places: list[RunDirectory]) -> Iterator[Decision]:
        """What the clients of every guarded run decide."""
        for job in self.experiment.plan:
            if job.system.guarded:
                names, found = self._evidence(job, places)
                yield Decision(job, names, found, judge(found, self.settings.confidence))

    def _evidence(self, job: Job, places: list[RunDirectory]) -> tuple[tuple[str, ...], Evidence]:
        """The clients, and what validation says of each of them."""

        def load(run: Job, place: RunDirectory) -> Losses:
            return load_losses(place, *run.key)

        alone = self._alone(job)
        pairs = [(self._read(place, partial(load, alone)), self._read(place, partial(load, job))) for place in places]
        return pairs[0][0].names, compared(pairs, loss_of(self._metric, "score" in pairs[0][0].values))

    def _alone(self, job: Job) -> Job:
        """LOCAL with the seed of ``job``."""
        return Job(self.experiment.plan.reference, job.seed)

    @property
    def _metric(self) -> str:
        """In which the run is reported."""
        task: Task = self.experiment.federation(self.experiment.config.seeds[0]).task
        return main_metric(task, self.experiment.config.metric)

    def _reached(self, history: History) -> dict[tuple[str, str, int], Reported]:
        tables = history.frames([job.key for job in self.experiment.plan])
        return reported(tables.clients, self._metric, self.experiment.config.report)

    def _enter(
        self,
        history: History,
        decision: Decision,
        reached: dict[tuple[str, str, int], Reported],
        books: list[History],
    ) -> None:
        """The guarded run's results, in the round that its method reports, and what both its models cost."""
        job, alone = decision.job, self._alone(decision.job)
        key = Job(guarded(job.system), job.seed).key
        history.cut(*key, -1)
        if job.key not in reached or alone.key not in reached:
            return
        rounds = {run.key: reached[run.key].round for run in (job, alone)}
        for split, metric, names, n, own in history.evaluated(*job.key, rounds[job.key]):
            other = history.latest(*alone.key, split, metric, round=rounds[alone.key])
            if other is None:
                continue
            kept = np.where(decision.judged.keep, own, other.loc[list(names)].to_numpy())
            history.add_clients(*key, rounds[job.key], split, names, n, metric, kept)
        for split, metric, client, reason in history.undefined(*job.key):
            history.add_undefined(*key, split, metric, client, reason)
        last = self.experiment.config.rounds
        history.add(*key, last, "", "keeps_local", float((~decision.judged.keep).mean()), phase="train")
        costs = [book.costs(*run) for book in books for run in (job.key, alone.key)]
        for metric in dict.fromkeys(metric for sizes, _ in costs for metric in sizes):
            history.add(*key, last, "", metric, sum(sizes.get(metric, 0) for sizes, _ in costs), phase="train")
        history.add_timing(*key, last, "train", sum(seconds for _, seconds in costs))

    def _settle(self, decisions: Sequence[Decision]) -> None:
        """The models that the clients keep, beside those of the methods and of LOCAL."""
        for decision in decisions if self.experiment.config.save_models else ():
            job, alone = decision.job, self._alone(decision.job)
            own = Job(guarded(job.system), job.seed)
            for client, keep in zip(decision.names, decision.judged.keep.tolist(), strict=True):
                copy_model(self.directory, (job if keep else alone).key, own.key, client)
