"""One job: its rounds, its checkpoints and its models; whoever keeps the books watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coterie.engines import Alone, Company, Diverged, Engine, RoundReport, Simulation, SitesLost, Trained, checkpoint
from coterie.errors import CoterieError
from coterie.evaluation import Task
from coterie.experiment.handover import handed_over
from coterie.experiment.newcomers import take_in
from coterie.experiment.plan import Job
from coterie.runs import NewcomersDirectory, RunDirectory, save_losses, save_models, save_relations

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment

CHECKPOINT_SECONDS = 30.0
"""A checkpoint is written at least this often, however many rounds lie between two."""

CHECKPOINT_SHARE = 0.1
"""Of the time, for checkpoints, and the tables before them, that would be written only because seconds have passed:
large ones come less often."""


@dataclass(frozen=True)
class Opening:
    """How a job begins.

    Attributes
    ----------
    round : int
        The round of its checkpoint; -1 where there is none.
    names : tuple of str
        The clients, in roster order.
    n : ndarray (K,)
        Their training examples.
    task : str
        ``classification`` or ``regression``.
    source : mapping
        Where the data came from.
    resolved : mapping
        How the engine executes on this machine.
    owed : int, optional
        The round whose evaluation will come in anew.
    """

    round: int
    names: tuple[str, ...]
    n: NDArray[np.int64]
    task: Task
    source: Mapping[str, Any]
    resolved: Mapping[str, Any]
    owed: int | None = None


@dataclass(frozen=True)
class Closing:
    """How a job ends.

    Attributes
    ----------
    round, report : int
        The last round, and the one that is reported.
    traffic : DataFrame
        All bytes by client, phase, direction and kind.
    """

    round: int
    report: int
    traffic: pd.DataFrame


class Observer(Protocol):
    """Keeps the books of a job: in the same process, or at the other end of a pipe."""

    def began(self, job: Job, opening: Opening) -> None:
        """The job starts, or goes on from its checkpoint."""

    def noted(self, job: Job, report: RoundReport) -> bool:
        """A round is over; whether the job shall save and stop."""

    def saving(self, job: Job) -> None:
        """A checkpoint will be written: the history must be on disk first, so that it is never behind one."""

    def gave_up(self, job: Job, round: int, reason: str) -> None:
        """Every client failed; the rounds before are kept."""

    def finished(self, job: Job, closing: Closing) -> None:
        """Rounds and models are complete: once that is on disk, the checkpoint is no longer needed."""


def carry_out(
    experiment: Experiment,
    job: Job,
    directory: RunDirectory,
    observer: Observer,
    join: Callable[[Simulation], Company] | None = None,
) -> bool:
    """Run one job from its checkpoint, or from the start, to its models; its clients ``join`` those of other jobs.

    Returns whether it came to its end; False where the observer, or its company, asked it to save and stop.

    Raises
    ------
    CoterieError
        Wrong data, a damaged checkpoint, or a file that cannot be written.
    """
    with experiment.engine(job) as engine:
        company = join(engine) if join is not None and isinstance(engine, Simulation) else Alone()
        return _carry_out(experiment, job, engine, directory, observer, company)


def _carry_out(
    experiment: Experiment, job: Job, engine: Engine, directory: RunDirectory, observer: Observer, company: Company
) -> bool:
    federation = experiment.federation(job.seed)
    path = directory.checkpoint(*job.key)
    resumed = path.exists()
    if resumed:
        checkpoint.load(path, engine)
    n = np.asarray(federation.train.n)
    round = engine.round if resumed else -1
    facts = (federation.names, n, federation.task, federation.source)
    observer.began(job, Opening(round, *facts, engine.resolved, engine.owed_round))
    diverged = False
    try:
        if not _advance(experiment, job, engine, directory, observer, company, begun=resumed):
            return False
    except Diverged as error:
        diverged = True
        observer.gave_up(job, engine.round, str(error))
    engine.finish()
    keep_losses = experiment.config.save_losses and engine.federation.validation.total > 0
    if experiment.config.save_models or keep_losses:
        predictor = engine.report_predictor()
    if experiment.config.save_models:
        handed = handed_over(federation, experiment.model, predictor, federation.names)
        models = predictor.models.tensors
        save_models(directory, *job.key, federation.names, models, round=engine.report_round, facts=handed)
    if keep_losses:
        losses = engine.report_losses(predictor)
        save_losses(directory, *job.key, federation.names, federation.validation.n.numpy(), losses)
    closing = Closing(engine.round, engine.report_round, engine.ledger.per_client())
    if not diverged:
        trained, newcomers = Trained.of(engine), experiment.newcomers(job.seed)
        if experiment.config.save_server:
            trained.save(directory.server(*job.key))
        if newcomers is not None:
            observer.saving(job)
            checkpoint.save(path, engine)  # so that a kill costs no round
            take_in(experiment, job, trained, newcomers, NewcomersDirectory(directory.newcomers))
    observer.finished(job, closing)
    return True


def _advance(
    experiment: Experiment,
    job: Job,
    engine: Engine,
    directory: RunDirectory,
    observer: Observer,
    company: Company,
    *,
    begun: bool,
) -> bool:
    """The remaining rounds, with checkpoints; whether the last one was reached.

    What was ``begun`` has its report of round 0, even where it was stopped right after that.
    """
    path = directory.checkpoint(*job.key)
    saved, last, pause = time.monotonic(), engine.round, CHECKPOINT_SECONDS
    stop = not begun and observer.noted(job, engine.initial_report())
    while not engine.finished:
        due = engine.round - last >= experiment.config.checkpoint_every
        due = due or time.monotonic() - saved >= pause
        stop, due = company.agree(stop, due)
        if due or stop:
            begin = time.monotonic()  # before the tables, which may take longer than the checkpoint
            observer.saving(job)
            checkpoint.save(path, engine)
            saved, last = time.monotonic(), engine.round
            pause = max(CHECKPOINT_SECONDS, (saved - begin) / CHECKPOINT_SHARE)
        if stop:
            return False
        report = _next_round(engine)
        if _wanted(experiment, report.due, engine.finished):
            _save_relations(job, engine, directory)
        if report.late is not None:
            observer.noted(job, report.late)
        stop = observer.noted(job, report)
    return True


def _next_round(engine: Engine) -> RoundReport:
    """One round; a setting that this method cannot work with ends its run, and no other."""
    try:
        return engine.advance()
    except (Diverged, SitesLost):
        raise
    except CoterieError as error:
        raise Diverged(str(error)) from error


def _wanted(experiment: Experiment, evaluated: bool, last: bool) -> bool:
    """Whether the configuration asks for the relations of this round."""
    when = experiment.config.save_relations
    return when != "none" and (last or when == "every_round" or (when == "evaluated" and evaluated))


def _save_relations(job: Job, engine: Engine, directory: RunDirectory) -> None:
    matrices = engine.relations()
    if matrices:
        save_relations(directory, *job.key, engine.round, engine.names, matrices)
