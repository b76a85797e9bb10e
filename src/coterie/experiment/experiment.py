"""A configuration brought to life: its methods, its federation, its model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.config import RECIPE, Config, ModelConfig, RayConfig
from coterie.engines import Engine, Simulation
from coterie.engines.ray import RayEngine, library
from coterie.errors import CoterieError, CoterieWarning
from coterie.evaluation import check_report
from coterie.experiment.display import busy
from coterie.experiment.folds_ahead import check_folds
from coterie.experiment.given import recognised
from coterie.experiment.guarding import Guard, check_guard, guards, section
from coterie.experiment.newcomers import divide, held_out
from coterie.experiment.plan import Job, Plan, plan
from coterie.experiment.result import Result
from coterie.experiment.session import Session
from coterie.experiment.setting import (
    check_metric,
    check_model,
    check_precision,
    check_roster,
    check_targets,
    engine_settings,
    resolve_device,
    sized,
)
from coterie.federation import Federation, build_federation
from coterie.federation.folds import refolded
from coterie.models.factory import ModelSpec
from coterie.privacy import epsilon_of
from coterie.runs import History, RunDirectory, locked
from coterie.runs.record import Record
from coterie.tracking import check_libraries
from coterie.yamltext import write_yaml


class Experiment:
    """A federation, a model, a training recipe and the methods to compare, as one configuration says.

    Parameters
    ----------
    config : Config
        The validated configuration.
    data_dir : Path, optional
        Where data files lie; default ``$COTERIE_DATA``, else the user's cache.
    federation : Federation, optional
        The clients' data where the configuration says ``source: memory``: the same for all seeds.

    Raises
    ------
    CoterieError
        An unknown method, a wrong option, or another federation than that of the configuration.
    """

    def __init__(self, config: Config, *, data_dir: Path | None = None, federation: Federation | None = None) -> None:
        self.config = config.model_copy(update={"device": resolve_device(config)})
        self.data_dir = data_dir
        self.plan: Plan = plan(config)
        if guards(self.plan):  # it goes by the validation examples of this run, too
            self.config = self.config.model_copy(update={"save_losses": True})
        self.model = ModelSpec(config.model.name, config.model.options)
        self.given = None if federation is None else recognised(federation, config.federation)
        self.stopped: int | None = None  # by which signal, where a stop was asked for in the last round
        self._federations: dict[int, tuple[Federation, Federation | None]] = {}

    def federation(self, seed: int) -> Federation:
        """The members of the federation of one seed; a seed fixed in the configuration gives all the same.

        Raises
        ------
        CoterieError
            The data are missing or damaged, or cannot be partitioned as asked.
        """
        return self._divided(seed)[0]

    def newcomers(self, seed: int) -> Federation | None:
        """The clients that are held out with this seed; None where nobody is.

        Raises
        ------
        CoterieError
            As `federation`, or a newcomer that no client is.
        """
        return self._divided(seed)[1]

    def _divided(self, seed: int) -> tuple[Federation, Federation | None]:
        used = seed if self.config.federation.seed is None else self.config.federation.seed
        if used not in self._federations:
            while len(self._federations) >= (self.config.share or 1):  # as many as are trained at a time
                del self._federations[next(iter(self._federations))]
            section = self.config.federation
            out = held_out(self.config.newcomers, used)
            built = self.given or build_federation(section, seed=used, data_dir=self.data_dir, held_out=out)
            if self.given is not None and section.fold is not None:
                built = refolded(built, section.fold, used)
            self._federations[used] = divide(self.config.newcomers, built, used)
        return self._federations[used]

    def check(self) -> Federation:
        """Find what is wrong before a run directory is made; returns the first seed's federation.

        Raises
        ------
        CoterieError
            What is wrong, and the remedy.
        """
        self._check_engine()
        check_precision(self.config)
        check_guard(self.config, guards(self.plan))
        if self.config.tracking is not None:
            check_libraries(self.config.tracking)
        first, *further = self.config.seeds
        self._check_first(self.federation(first))
        for seed in further if self.config.federation.seed is None else ():
            try:
                self._check_data(self.federation(seed))
            except CoterieError as error:
                raise CoterieError(f"seed {seed}: {error}") from error
        return self.federation(first)  # divided once more where no two stay in memory, since the run begins with it

    def _check_first(self, federation: Federation) -> None:
        """Find what is wrong with the data, the model or the guard."""
        self._check_data(federation)
        validated = federation.validation.total > 0
        if guards(self.plan) and section(self.config).folds == 0 and not validated:
            raise CoterieError(
                "guard.folds: 0 judges by validation examples, but no client has any: give guard.folds: 5, or "
                "validation examples."
            )
        if guards(self.plan) and federation.train.weights is not None:
            raise CoterieError(
                "guard compares models on examples that all count alike, but these have weights: remove guard, or "
                "federation.weights."
            )
        self._warn_of_sums(federation)
        check_targets(self.config, federation.task)
        self.size_model(federation)
        check_model(self.model, federation)
        self._check_folds()

    def _warn_of_sums(self, federation: Federation) -> None:
        """What clients send before the first round is not noised, as at real sites, which then refuse by default."""
        private = self.config.privacy is not None and self.config.privacy.noise is not None
        if private and federation.preparation is not None:
            warnings.warn(
                "The clients prepare a table together, and what they send for that takes no noise: epsilon does not "
                "cover it. federation.preprocessing: none leaves it out.",
                CoterieWarning,
                stacklevel=2,
            )

    def _check_data(self, federation: Federation) -> None:
        """What may be wrong with the division of one seed alone."""
        check_report(self.config.report, federation.validation.total > 0)
        self._check_metric(federation)
        check_roster(self.config, federation)

    def size_model(self, federation: Federation) -> None:
        """Store what the model depends on, so that a resumed run and every process build the same one."""
        self.model = sized(self.model, federation)
        if self.model.options != self.config.model.options:
            named = ModelConfig(name=self.model.name, **self.model.options)
            self.config = self.config.model_copy(update={"model": named})

    def _check_engine(self) -> None:
        if self.config.engine == "flower":
            raise CoterieError(
                "engine: flower is for real sites: run.sh in the server's folder, which coterie deploy init writes, "
                "starts such a run and goes on with it."
            )
        if self.config.engine == "ray":
            library()
        if self.config.privacy is not None and self.config.privacy.noise is not None:
            epsilon_of(1, self.config.privacy.noise, self.config.privacy.delta)  # whether it can be told

    def _check_metric(self, federation: Federation) -> None:
        check_metric(self.config, federation)

    def _check_folds(self) -> None:
        check_folds(self)

    def recipe(self) -> dict[str, Any]:
        """The part of the configuration that every result depends on."""
        tree = self.config.as_dict()
        return {key: tree.get(key) for key in RECIPE}

    def engine(self, job: Job) -> Engine:
        """The engine of one job, at round 0.

        Raises
        ------
        CoterieError
            What the engine needs is not there.
        """
        settings, federation = engine_settings(self.config, job), self.federation(job.seed)
        check_metric(self.config, federation)
        if self.config.engine == "ray":
            cluster = self.config.ray or RayConfig()
            return RayEngine(
                federation, job.system.method, self.model, settings, address=cluster.address, actors=cluster.actors
            )
        return Simulation(federation, job.system.method, self.model, settings)

    def guard(self, directory: RunDirectory, console: Console | None) -> Guard:
        """The guard of the run in ``directory``, whose methods have been trained."""
        return Guard(self, directory, console)

    def run(self, *, output: Path | None = None, overwrite: bool = False, console: Console | None = None) -> Result:
        """Run everything into a new run directory.

        Parameters
        ----------
        output : Path, optional
            The run directory; default the configuration's ``output``, else ``runs/<name>-<n>``.
        overwrite : bool
            Replace an existing run directory.
        console : Console, optional
            Where progress is shown; default nowhere.

        Raises
        ------
        CoterieError
            Wrong input, or a directory that exists or cannot be written.
        Interrupted
            Stopped by a signal, after saving.
        """
        with busy(console, "Dividing the data"):
            self.check()
        path = output or (Path(self.config.output) if self.config.output else None)
        directory = RunDirectory.create(path, self.config.name, overwrite=overwrite)
        with locked(directory):
            self.write_config(directory)
            return Session(self, directory, History(), Record.of(directory), console).run()

    def resume(self, directory: RunDirectory, *, console: Console | None = None) -> Result:
        """Go on with an experiment of this configuration where ``directory`` stops.

        Raises
        ------
        CoterieError
            A file of the run directory is damaged, or the data are not the same.
        Interrupted
            Stopped by a signal, after saving.
        """
        with busy(console, "Dividing the data"):
            self.check()
        with locked(directory):
            return Session(self, directory, History.read(directory), Record.of(directory), console).run()

    def write_config(self, directory: RunDirectory) -> None:
        """Store the configuration as resolved so far."""
        directory.write_config(write_yaml(self.config.as_dict()))

    def settle(self, resolved: Mapping[str, Any]) -> bool:
        """Keep what was chosen, mostly by the first simulation, so that jobs execute alike; whether that was news."""
        chosen = {key: resolved[key] for key in ("executor", "chunk", "threads", "share") if key in resolved}
        if "actors" in resolved:
            chosen["ray"] = (self.config.ray or RayConfig()).model_copy(update={"actors": resolved["actors"]})
        settled = self.config.model_copy(update=chosen)
        news = settled != self.config
        self.config = settled
        return news
