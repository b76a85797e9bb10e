"""The search itself: every method gets the same budget, seeds and data, and only validation data decide."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.config import Config, TuneConfig, parse_config
from coterie.engines.workers import MACHINE_THREADS
from coterie.errors import CoterieError, Interrupted
from coterie.evaluation import main_metric
from coterie.experiment import read_config
from coterie.experiment.display import busy
from coterie.experiment.interrupt import StopRequest, listening
from coterie.experiment.plan import REFERENCE
from coterie.experiment.processes import how_many
from coterie.experiment.setting import check_metric, check_model, check_roster
from coterie.runs import RunDirectory, locked
from coterie.runs.atomic import write_text
from coterie.tuning.attempts import Attempts
from coterie.tuning.books import Books, rows
from coterie.tuning.display import Progressing
from coterie.tuning.processes import Processes
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

    What is given here goes before the section ``tune`` of the configuration. The same search of the same data,
    interrupted before, goes on where it stopped.

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
    return tuner.run(_books(config, None if output is None else Path(output), tuner.attempts))


def resume_tuning(
    directory: str | Path, *, data_dir: str | Path | None = None, console: Console | None = None
) -> Tuned:
    """Go on with an interrupted search; a finished one gives its result again.

    Raises
    ------
    CoterieError
        Not the directory of a search, a damaged file, or other data than before.
    Interrupted
        Stopped again.
    """
    books, config = Books.open(directory)
    return _Tuner(config, None if data_dir is None else Path(data_dir), console).run(books)


def _books(config: Config, output: Path | None, attempts: Attempts) -> Books:
    """A new directory, or the one of the same search of the same data where it was interrupted.

    Raises
    ------
    CoterieError
        There is already something else in ``output``.
    """
    name = f"tune-{config.name}"
    earlier = [output] if output is not None else sorted(Path("runs").glob(f"{name}-*"))
    for path in earlier:
        if path is None or not (path / "tune.yaml").is_file() or (path / "best.yaml").is_file():
            continue
        books, known = Books.open(path)
        if known.model_copy(update={key: getattr(config, key) for key in RESOLVED}) != config:
            continue
        if output is not None or all(attempts.digest(seed) == digest for seed, digest in books.data.items()):
            return books
    return Books(RunDirectory.create(output, name), [])


class _Tuner:
    """One sitting of a search; it keeps the books of all trials (a `Watcher`)."""

    def __init__(self, config: Config, data_dir: Path | None, console: Console | None) -> None:
        section = config.tune or TuneConfig()
        if not section.space:
            raise CoterieError("tune.space is missing: say what to search, such as --space training.lr=0.01,0.1.")
        self.attempts = Attempts(config, data_dir)
        names = {method: entry.name for method, entry in self.attempts.entries.items()}
        check_keys(names, section.space)
        self.spaces = [space_of(method, name, section.space) for method, name in names.items()]
        self.search = section.search or ("grid" if all(space.finite for space in self.spaces) else "random")
        check_search(self.search, self.spaces, section.trials)
        self.trials = section.trials if self.search == "grid" else section.trials or DEFAULT_TRIALS
        self.section, self.original, self.data_dir = section, config, data_dir
        self.experiment, self.seeds = self.attempts.experiment, self.attempts.seeds
        for space in self.spaces:
            for values in space.corners():
                self.attempts.setting(space.method, values)
        self.console = console
        self.stop = StopRequest()

    def check(self) -> str:
        """Find what is wrong with the data or the model; returns the metric to choose by.

        Raises
        ------
        CoterieError
            What is wrong, and the remedy.
        """
        with busy(self.console, "Dividing the data"):
            federation = self.attempts.federation(self.seeds[0])
        check_metric(self.experiment.config, federation)
        check_roster(self.experiment.config, federation)
        self.attempts.size_model()
        check_model(self.experiment.model, federation)
        return main_metric(federation.task, self.experiment.config.metric)

    def run(self, books: Books) -> Tuned:
        """Try what is left to try, one trial after the other or side by side, then write the best setting.

        Raises
        ------
        CoterieError
            Wrong data, or a file that cannot be written.
        Interrupted
            Stopped by a signal; finished trials, and finished seeds of those that were stopped, are kept.
        """
        self.books, self.metric = books, self.check()
        books.check_data(self.seeds[0], self.attempts.digest(self.seeds[0]))
        with (
            locked(books.run),
            Progressing(self._total(), self.metric, self.console) as self.display,
            listening(self.display.stopping) as self.stop,
        ):
            books.write_config(self.original)
            earlier = [trial for trial in books.trials if trial.finished(self.seeds)]
            count, threads = self._processes(len(earlier))
            self.display.start(self.spaces, self.search, books.run.path, earlier, count)
            if count > 1:
                config = self.original.model_copy(update=self._resolved() | {"threads": threads})
                with Processes(self.attempts, config, self.data_dir, count, threads) as processes:
                    processes.run(self)
            else:
                while self.stop.number is None and (trial := self.next([])) is not None:
                    self.attempts.carry_out(trial, self)
                    self.over(trial)
            if any(not trial.finished(self.seeds) for trial in books.trials) or self.next([]) is not None:
                raise Interrupted(books.run.path, self.stop.number or 0, ("tune", "--resume"))
        return self._result(books, self.metric)

    # --- which trials --------------------------------------------------------------------------------------------
    def _total(self) -> int:
        """How many trials there will be, at most."""
        if self.search != "grid":
            return len(self.spaces) * (self.trials or DEFAULT_TRIALS)
        return sum(math.prod(len(d) for d in s.dimensions.values() if isinstance(d, list)) for s in self.spaces)

    def _processes(self, finished: int) -> tuple[int, int]:
        """Processes for what is left, and threads for each."""
        left = self._total() - finished
        if left < 1 or "__main__" in self.attempts.modules:
            return 1, self.experiment.config.threads or MACHINE_THREADS
        count, threads = how_many(self.experiment, left * len(self.seeds))
        most = len(self.spaces) if self.search == "optuna" else left
        return min(count, most), threads

    def next(self, at_work: Collection[Trial]) -> Trial | None:
        """A trial that was interrupted, else a new one; None while there is nothing to begin beside those at work."""
        for space in self.spaces:
            trial = self._next(space, at_work)
            if trial is not None:
                self.books.write(self.metric, self.seeds)  # a setting that was begun is not drawn again
                return trial
        return None

    def _next(self, space: Space, at_work: Collection[Trial]) -> Trial | None:
        trials = self.books.trials
        own = [trial for trial in trials if trial.method == space.method]
        unfinished = [trial for trial in own if not trial.finished(self.seeds)]
        for trial in unfinished:
            if all(trial is not other for other in at_work):
                return trial
        if self.trials is not None and len(own) >= self.trials:
            return None
        if self.search == "optuna" and unfinished:  # what it proposes depends on what that one will come to
            return None
        values = propose(self.search, space, own, self.section.seed)
        if values is None:
            return None
        trial = Trial(space.method, values)
        trials.append(trial)
        order = [each.method for each in self.spaces]
        trials.sort(key=lambda each: order.index(each.method))
        return trial

    # --- the books of a trial ------------------------------------------------------------------------------------
    def divides(self, trial: Trial, seed: int, digest: str) -> bool:
        """See `Watcher`; the data may have changed since the search began."""
        self.books.check_data(seed, digest)
        return self.stop.number is not None

    def begins(self, trial: Trial, seed: int) -> bool:
        """See `Watcher`."""
        self.display.begin(trial, seed, self.experiment.config.rounds)
        return self.stop.number is not None

    def settles(self, trial: Trial, resolved: Mapping[str, Any]) -> None:
        """See `Watcher`: all trials execute alike, those after a resumption too."""
        self.experiment.settle(resolved)
        self.books.write_config(self.original.model_copy(update=self._resolved()))

    def advances(self, trial: Trial, seed: int, round: int) -> bool:
        """See `Watcher`."""
        self.display.advance(trial, seed, round)
        return self.stop.number is not None

    def ends(self, trial: Trial, seed: int) -> None:
        """See `Watcher`."""
        self.display.end(trial, seed)

    def keeps(self, trial: Trial) -> None:
        """See `Watcher`."""
        self.books.write(self.metric, self.seeds)

    def over(self, trial: Trial) -> None:
        """A trial is finished, or was stopped."""
        if trial.finished(self.seeds):
            self.display.done(trial)

    def _resolved(self) -> dict[str, Any]:
        return {key: getattr(self.experiment.config, key) for key in RESOLVED}

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
        entries = [*self._alone(), *(self.attempts.entry(method, values) for method, values in best.items())]
        tree = {key: value for key, value in self.original.as_dict().items() if key != "tune"}
        config = parse_config({**tree, "algorithms": entries}) if entries else self.original
        if entries:
            write_text(books.best, write_yaml(config.as_dict()))
        return Tuned(
            books.run.path, rows(books.trials, metric, self.seeds), f"validation_{metric}", best, config, tuple(failed),
            self._remarks(best),
        )  # fmt: skip

    def _alone(self) -> list[dict[str, Any]]:
        """LOCAL as the experiment has it, where it is not tuned and has settings of its own."""
        if REFERENCE in self._names():
            return []
        own = (entry for entry in self.original.algorithms if entry.name == REFERENCE)
        return [tree for entry in own if len(tree := entry.model_dump(exclude_unset=True)) > 1]

    def _remarks(self, best: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
        """Whether gains over LOCAL would be those of tuned training over training that is not."""
        shared = sorted({key for values in best.values() for key in values if key.startswith(TRAINING)})
        if not shared or REFERENCE in self._names():
            return ()
        return (
            f"LOCAL was not tuned, and {', '.join(shared)} may help it as much: gains over it would be those of "
            f"tuning, too. Tune it along with the others (--algorithm {REFERENCE}).",
        )

    def _names(self) -> set[str]:
        """The registered names of the methods that are tuned."""
        return {entry.name for entry in self.attempts.entries.values()}
