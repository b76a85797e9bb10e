"""The search itself: every method gets the same budget, seeds and data, and only validation data decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from coterie.config import AlgorithmEntry, Config, TuneConfig, parse_config
from coterie.contract import algorithm_class
from coterie.engines import Alone, Member, Shared, Simulation
from coterie.errors import CoterieError, Interrupted
from coterie.evaluation import main_metric
from coterie.experiment import Experiment, read_config
from coterie.experiment.display import busy
from coterie.experiment.interrupt import StopRequest, listening
from coterie.experiment.plan import Job, plan
from coterie.experiment.setting import check_metric, check_model, check_roster, engine_settings
from coterie.federation import ClientData, Federation
from coterie.runs import RunDirectory, locked
from coterie.tuning.books import Books, rows
from coterie.tuning.display import Progressing
from coterie.tuning.result import Tuned
from coterie.tuning.search import check_search, propose
from coterie.tuning.space import TRAINING, Space, check_keys, space_of
from coterie.tuning.trial import Trial
from coterie.yamltext import write_yaml

DEFAULT_TRIALS = 20
"""Settings of each method, where neither a grid nor ``trials`` says how many."""

RESOLVED = ("executor", "chunk", "threads")
"""Keys of the configuration that the first trial settles where they are left open."""


def tune(
    source: str | Path | Mapping[str, Any] | Config = "quickstart",
    overrides: Sequence[str] = (),
    *,
    algorithms: Sequence[str] = (),
    space: Mapping[str, Any] | None = None,
    search: str | None = None,
    trials: int | None = None,
    rounds: int | None = None,
    seeds: Sequence[int] | None = None,
    data_dir: str | Path | None = None,
    output: str | Path | None = None,
    device: str | None = None,
    console: Console | None = None,
) -> Tuned:
    """Search for hyper-parameters of methods by validation data; test data are not read.

    What is given here goes before the section ``tune`` of the configuration. The same search, interrupted before, goes
    on where it stopped.

    Parameters
    ----------
    source, overrides, data_dir, device, console
        As for `coterie.run`.
    algorithms : sequence of str
        The methods, by name, or by label in the configuration; default: all that it lists.
    space : mapping
        Listed values (``{"lambda": [0.1, 1]}``) or a range (``{"training.lr": "0.001..0.1:log"}``) by option of a
        method or key of ``training``; ``ditto.lambda`` is for one method alone.
    search : str, optional
        ``grid``, ``random`` or ``optuna``; default: ``grid`` where all values are listed, else ``random``.
    trials : int, optional
        Settings of each method; default: the whole grid, else 20.
    rounds : int, optional
        Rounds of each trial; default: the configuration's.
    seeds : sequence of int, optional
        Seeds of each trial; default: the configuration's.
    output : path, optional
        The directory of the search; default ``runs/tune-<name>-<n>``.

    Returns
    -------
    Tuned
        Rows of all trials and the best settings.

    Raises
    ------
    CoterieError
        Wrong input; the message says what, where and what to do.
    Interrupted
        Stopped by Ctrl-C or SIGTERM; what is finished is kept.

    Examples
    --------
    >>> tuned = tune("quickstart", algorithms=["ditto"], space={"lambda": [0.1, 1.0]}, rounds=5)  # doctest: +SKIP
    >>> coterie.run(tuned.config)  # doctest: +SKIP
    """
    config = read_config(source, overrides, device)
    given = {
        "algorithms": list(algorithms) or None,
        "space": dict(space) if space else None,
        "search": search,
        "trials": trials,
        "rounds": rounds,
        "seeds": None if seeds is None else list(seeds),
    }
    stated = {} if config.tune is None else config.tune.model_dump(exclude_unset=True)
    section = stated | {key: value for key, value in given.items() if value is not None}
    config = parse_config({**config.as_dict(), "tune": section}, where="tune")
    tuner = _Tuner(config, None if data_dir is None else Path(data_dir), console)
    tuner.check()  # before a directory is made
    return tuner.run(_books(config, None if output is None else Path(output)))


def resume_tuning(
    directory: str | Path, *, data_dir: str | Path | None = None, console: Console | None = None
) -> Tuned:
    """Go on with an interrupted search; a finished one gives its result again.

    Raises
    ------
    CoterieError
        Not the directory of a search, or a damaged file.
    Interrupted
        Stopped again.
    """
    books, config = Books.open(directory)
    return _Tuner(config, None if data_dir is None else Path(data_dir), console).run(books)


def _books(config: Config, output: Path | None) -> Books:
    """A new directory, or the one of the same search where it was interrupted."""
    name = f"tune-{config.name}"
    earlier = [output] if output is not None else sorted(Path("runs").glob(f"{name}-*"))
    for path in earlier:
        if path is None or not (path / "tune.yaml").is_file() or (path / "best.yaml").is_file():
            continue
        books, known = Books.open(path)
        if known.model_copy(update={key: getattr(config, key) for key in RESOLVED}) == config:
            return books
    return Books(RunDirectory.create(output, name), [])


class _Tuner:
    """One sitting of a search."""

    def __init__(self, config: Config, data_dir: Path | None, console: Console | None) -> None:
        section = config.tune or TuneConfig()
        if not section.space:
            raise CoterieError("tune.space is missing: say what to search, such as --space training.lr=0.01,0.1.")
        self.entries = {name: _entry(config, name) for name in section.algorithms or _called(config)}
        names = {method: entry.name for method, entry in self.entries.items()}
        check_keys(names, section.space)
        self.spaces = [space_of(method, name, section.space) for method, name in names.items()]
        self.search = section.search or ("grid" if all(space.finite for space in self.spaces) else "random")
        check_search(self.search, self.spaces, section.trials)
        self.trials = section.trials if self.search == "grid" else section.trials or DEFAULT_TRIALS
        self.section = section
        self.original = config
        self.seeds = section.seeds or config.seeds
        update = {"rounds": section.rounds or config.rounds, "seeds": self.seeds, "report": "best_val", "tune": None}
        self.experiment = Experiment(config.model_copy(update=update), data_dir=data_dir)
        for space in self.spaces:
            for values in space.corners():
                self._setting(space.method, values)
        self.console = console
        self.stop = StopRequest()
        self._data: dict[int, Federation] = {}

    def check(self) -> str:
        """Find what is wrong with the data or the model; returns the metric to choose by.

        Raises
        ------
        CoterieError
            What is wrong, and the remedy.
        """
        with busy(self.console, "Dividing the data"):
            federation = self._federation(self.seeds[0])
        check_metric(self.experiment.config, federation)
        check_roster(self.experiment.config, federation)
        check_model(self.experiment.model, federation)
        return main_metric(federation.task, self.experiment.config.metric)

    def run(self, books: Books) -> Tuned:
        """Try what is left to try, then write the best setting.

        Raises
        ------
        CoterieError
            Wrong data, or a file that cannot be written.
        Interrupted
            Stopped by a signal; finished trials, and finished seeds of the one that was stopped, are kept.
        """
        metric = self.check()
        with (
            locked(books.run),
            Progressing(self._total(), metric, self.console) as display,
            listening(display.stopping) as self.stop,
        ):
            books.write_config(self.original)
            earlier = [trial for trial in books.trials if trial.finished(self.seeds)]
            display.start(self.spaces, self.search, books.run.path, earlier)
            for space in self.spaces:
                while (trial := self._next(space, books)) is not None:
                    self._carry_out(trial, books, metric, display)
                    if not trial.finished(self.seeds):
                        raise Interrupted(books.run.path, self.stop.number or 0, ("tune", "--resume"))
                    display.done(trial)
        return self._result(books, metric)

    # --- trials --------------------------------------------------------------------------------------------------
    def _total(self) -> int:
        """How many trials there will be, at most."""
        if self.search != "grid":
            return len(self.spaces) * (self.trials or DEFAULT_TRIALS)
        return sum(math.prod(len(d) for d in s.dimensions.values() if isinstance(d, list)) for s in self.spaces)

    def _next(self, space: Space, books: Books) -> Trial | None:
        """The trial that was interrupted, else a new one; None where the method has had its budget."""
        own = [trial for trial in books.trials if trial.method == space.method]
        if own and not own[-1].finished(self.seeds):
            return own[-1]
        if self.trials is not None and len(own) >= self.trials:
            return None
        values = propose(self.search, space, own, self.section.seed)
        if values is None:
            return None
        books.trials.append(Trial(space.method, values))
        return books.trials[-1]

    def _carry_out(self, trial: Trial, books: Books, metric: str, display: Progressing) -> None:
        """The seeds that are left of a trial; stops between two rounds where that is asked for.

        One after the other, so that each is kept as soon as it is finished, unless the configuration lets them share
        a stack.
        """
        left, share = [seed for seed in self.seeds if seed not in trial.scores], self.experiment.config.share or 1
        for first in range(0, len(left), share):
            if trial.reason or self.stop.number is not None:
                return
            books.write(metric, self.seeds)  # a setting that was begun is not drawn again
            together = left[first : first + share]
            for seed in together:
                self._federation(seed)  # what is wrong with the data is no failure of this setting
            if len(together) == 1:
                self._try(trial, together[0], books, display, Alone())
            else:
                Shared([partial(self._try, trial, seed, books, display) for seed in together]).hold()
            books.write(metric, self.seeds)

    def _try(self, trial: Trial, seed: int, books: Books, display: Progressing, company: Alone | Member) -> bool:
        """One seed of a trial; whether it came to its end."""
        begin = company.clock()
        with display.trying(trial, seed, self.experiment.config.rounds) as advanced:
            try:
                simulation = self._simulation(trial, seed, books)
                if isinstance(company, Member):
                    company.join(simulation)
                while not simulation.finished:
                    if self.stop.number is not None or trial.reason:
                        return False
                    simulation.advance()
                    advanced(simulation.round)
            except CoterieError as error:
                trial.reason = trial.reason or f"seed {seed}: {error}"
            else:
                if simulation.chosen.round is None:
                    trial.reason = trial.reason or f"seed {seed}: no validation result was finite"
                else:
                    trial.scores[seed], trial.rounds[seed] = simulation.chosen.score, simulation.chosen.round
        trial.seconds += company.clock() - begin
        return True

    def _simulation(self, trial: Trial, seed: int, books: Books) -> Simulation:
        config = self._setting(trial.method, trial.values)
        system = next(system for system in plan(config).systems if system.asked_for)
        settings = engine_settings(config, Job(system, seed))
        simulation = Simulation(self._federation(seed), system.method, self.experiment.model, settings)
        if self.experiment.settle(simulation.resolved):  # all trials execute alike, those after a resumption too
            chosen = {key: getattr(self.experiment.config, key) for key in RESOLVED}
            books.write_config(self.original.model_copy(update=chosen))
        return simulation

    def _federation(self, seed: int) -> Federation:
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

    # --- settings ------------------------------------------------------------------------------------------------
    def _setting(self, method: str, values: Mapping[str, Any]) -> Config:
        """The configuration of one trial.

        Raises
        ------
        CoterieError
            A value is not allowed.
        """
        tree = self.experiment.config.as_dict() | {"algorithms": [_with(self.entries[method], values)]}
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

    def _result(self, books: Books, metric: str) -> Tuned:
        """The best of each method, the earliest of equals, written and returned."""
        best: dict[str, dict[str, Any]] = {}
        failed = []
        for space in self.spaces:
            own = [trial for trial in books.trials if trial.method == space.method]
            good = [(trial.score, trial) for trial in own if trial.score is not None]
            if good:
                best[space.method] = max(good, key=lambda pair: pair[0])[1].values
            else:
                failed.append(f"{space.method}: {own[0].reason if own else 'nothing was tried'}")
        entries = [_with(self.entries[method], values) for method, values in best.items()]
        tree = {key: value for key, value in self.original.as_dict().items() if key != "tune"}
        config = parse_config({**tree, "algorithms": entries}) if entries else self.original
        if entries:
            books.best.write_text(write_yaml(config.as_dict()), encoding="utf-8")
        return Tuned(
            books.run.path, rows(books.trials, metric, self.seeds), f"validation_{metric}", best, config, tuple(failed)
        )


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
    changed = entry.model_dump(exclude_none=True)
    for key, value in values.items():
        if not key.startswith(TRAINING):
            changed[key] = value
            continue
        section = changed.setdefault("training", {})
        *outer, last = key.removeprefix(TRAINING).split(".")
        for part in outer:
            section = section.setdefault(part, {})
        section[last] = value
    return changed
