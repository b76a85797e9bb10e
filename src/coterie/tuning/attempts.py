"""Trying settings: what every process of a search does by itself, while someone else keeps the books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from coterie.config import AlgorithmEntry, Config, TuneConfig, parse_config
from coterie.contract import algorithm_class
from coterie.engines import Alone, Member, Shared, Simulation
from coterie.errors import CoterieError
from coterie.experiment import Experiment
from coterie.experiment.plan import Job, plan
from coterie.experiment.processes import modules_of
from coterie.experiment.setting import engine_settings
from coterie.federation import ClientData, Federation
from coterie.tuning.space import TRAINING
from coterie.tuning.trial import Trial


class Watcher(Protocol):
    """Keeps the books of a trial: in the same process, or at the other end of a pipe."""

    def divides(self, trial: Trial, seed: int, digest: str) -> bool:
        """The data of a seed are divided; raises CoterieError where they are not those of earlier trials."""

    def begins(self, trial: Trial, seed: int) -> bool:
        """The training of a seed begins; whether to stop instead."""

    def settles(self, trial: Trial, resolved: Mapping[str, Any]) -> None:
        """How a simulation is executed on this machine: later ones shall be alike."""

    def advances(self, trial: Trial, seed: int, round: int) -> bool:
        """A round is over; whether to stop."""

    def ends(self, trial: Trial, seed: int) -> None:
        """The training of a seed is over, or was stopped."""

    def keeps(self, trial: Trial) -> None:
        """A seed, or those that share a stack, came to its end: what it reached shall be kept."""


class Attempts:
    """The settings of a search and the data they are tried on.

    Parameters
    ----------
    config : Config
        The experiment with its section ``tune``.
    data_dir : Path, optional
        Where data files lie.

    Raises
    ------
    CoterieError
        An unknown method.
    """

    def __init__(self, config: Config, data_dir: Path | None) -> None:
        section = config.tune or TuneConfig()
        self.entries = {name: _entry(config, name) for name in section.algorithms or _called(config)}
        self.seeds = section.seeds or config.seeds
        update = {"rounds": section.rounds or config.rounds, "seeds": self.seeds, "report": "best_val", "tune": None}
        self.experiment = Experiment(config.model_copy(update=update), data_dir=data_dir)
        self._data: dict[int, Federation] = {}
        self._digests: dict[int, str] = {}

    @property
    def modules(self) -> list[str]:
        """The modules that another process must import to know the methods, the model and the data."""
        methods = {algorithm_class(entry.name).__module__ for entry in self.entries.values()}
        return sorted({*modules_of(self.experiment), *methods})

    def carry_out(self, trial: Trial, watcher: Watcher) -> None:
        """The seeds that are left of a trial; stops between two rounds where the watcher says so.

        One after the other, so that each is kept as soon as it is finished, unless the configuration lets them share
        a stack.
        """
        self.size_model()
        left, share = [seed for seed in self.seeds if seed not in trial.scores], self.experiment.config.share or 1
        for first in range(0, len(left), share):
            together = left[first : first + share]
            for seed in together:
                watcher.divides(trial, seed, self.digest(seed))  # wrong data are no failure of this setting
            if len(together) == 1:
                whole = self._try(trial, together[0], watcher, Alone())
            else:
                whole = all(Shared([partial(self._try, trial, seed, watcher) for seed in together]).hold())
            watcher.keeps(trial)
            if trial.reason or not whole:
                return

    def size_model(self) -> None:
        """Give the model ``auto`` the size that it has in a run with these data, before anything is built."""
        self.experiment.size_model(self.federation(self.seeds[0]))

    def _try(self, trial: Trial, seed: int, watcher: Watcher, company: Alone | Member) -> bool:
        """One seed of a trial; whether it came to its end."""
        begin, stop = company.clock(), watcher.begins(trial, seed)
        try:
            simulation = self._simulation(trial, seed, watcher)
            if isinstance(company, Member):
                company.join(simulation)
            while not simulation.finished:
                if stop or trial.reason:
                    return False
                simulation.advance()
                stop = watcher.advances(trial, seed, simulation.round)
        except CoterieError as error:
            trial.reason = trial.reason or f"seed {seed}: {error}"
        else:
            if simulation.chosen.round is None:
                trial.reason = trial.reason or f"seed {seed}: no validation result was finite"
            else:
                trial.scores[seed], trial.rounds[seed] = simulation.chosen.score, simulation.chosen.round
        finally:
            watcher.ends(trial, seed)
        trial.seconds += company.clock() - begin
        return True

    def _simulation(self, trial: Trial, seed: int, watcher: Watcher) -> Simulation:
        config = self.setting(trial.method, trial.values)
        system = next(system for system in plan(config).systems if system.asked_for)
        settings = engine_settings(config, Job(system, seed))
        simulation = Simulation(self.federation(seed), system.method, self.experiment.model, settings)
        if self.experiment.settle(simulation.resolved):
            watcher.settles(trial, simulation.resolved)
        return simulation

    def federation(self, seed: int) -> Federation:
        """The federation of a seed without its test data, divided once for all trials.

        Raises
        ------
        CoterieError
            No client has validation data, or the data are missing or damaged.
        """
        if seed not in self._data:
            federation = self.experiment.federation(seed)
            if int(federation.validation.n.sum()) == 0:
                raise CoterieError(
                    "no client has validation data, and a search must choose by nothing else: give the clients "
                    "validation examples (federation.validation)."
                )
            test = federation.test
            nothing = torch.zeros(federation.k + 1, dtype=torch.int64)
            self._data[seed] = replace(federation, test=ClientData(test.inputs[:0], test.targets[:0], nothing))
        return self._data[seed]

    def digest(self, seed: int) -> str:
        """The checksum of `federation`, on which all scores of a seed depend."""
        if seed not in self._digests:
            self._digests[seed] = self.federation(seed).digest
        return self._digests[seed]

    def setting(self, method: str, values: Mapping[str, Any]) -> Config:
        """The configuration of one trial.

        Raises
        ------
        CoterieError
            A value is not allowed.
        """
        tree = self.experiment.config.as_dict() | {"algorithms": [self.entry(method, values)]}
        shown = ", ".join(f"{key}: {value}" for key, value in values.items())
        try:
            config = parse_config(tree, where=f"tune.space of {method}, {shown}")
            plan(config)
        except CoterieError as error:
            text = str(error)
            raise CoterieError(
                text if text.startswith("tune.space") else f"tune.space of {method}, {shown}: {text}"
            ) from error
        return config

    def entry(self, method: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The method's entry with a setting."""
        return _with(self.entries[method], values)


def _called(config: Config) -> list[str]:
    """What the methods of a configuration are called."""
    return [entry.label or entry.name for entry in config.algorithms]


def _entry(config: Config, method: str) -> AlgorithmEntry:
    """The configuration's entry of that label or name; one with all defaults where it lists none."""
    found = [entry for entry in config.algorithms if entry.label == method]
    found = found or [entry for entry in config.algorithms if entry.name == method]
    if len(found) > 1:
        raise CoterieError(
            f"tune.algorithms: the configuration lists {method} {len(found)} times: give each entry a label, and name "
            "that."
        )
    entry = found[0] if found else AlgorithmEntry(name=method)
    algorithm_class(entry.name)  # an unknown name is an error here, with the nearest one
    return entry


def _with(entry: AlgorithmEntry, values: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with other options, and other settings of training."""
    changed = entry.model_dump(exclude_unset=True)
    for key, value in values.items():
        if not key.startswith(TRAINING):
            changed[key] = value
            continue
        section = changed["training"] = changed.get("training") or {}
        *outer, last = key.removeprefix(TRAINING).split(".")
        for part in outer:
            section = section.setdefault(part, {})
        section[last] = value
    return changed
