"""One sitting of an experiment: the jobs that are not finished yet, one after the other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from rich.console import Console

from coterie.engines import Diverged, RoundReport, Simulation, checkpoint
from coterie.errors import CoterieError
from coterie.evaluation import choose_round, summarise
from coterie.experiment.display import Display, Standing
from coterie.experiment.interrupt import Interrupted, StopRequest, listening
from coterie.experiment.plan import Job
from coterie.experiment.record import Record
from coterie.experiment.result import Result
from coterie.federation import Federation
from coterie.runs import History, RunDirectory, save_models

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment

CHECKPOINT_SECONDS = 30.0
"""A checkpoint is written at least this often, however many rounds lie between two."""

Metric = Literal["accuracy", "mae"]


class Session:
    """One sitting of an experiment: the jobs that are not finished yet, one after the other."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunDirectory,
        history: History,
        record: Record,
        console: Console | None,
    ) -> None:
        self.experiment, self.directory, self.history, self.record = experiment, run, history, record
        self.display = Display(experiment.plan, experiment.config.rounds, console)
        self.metric: Metric = "accuracy"
        self.saved = time.monotonic()
        self.diverged: list[str] = []

    def run(self) -> Result:
        """Run what is left, then write the summary."""
        config, plan = self.experiment.config, self.experiment.plan
        with self.display, listening(self._stopping) as stop:
            try:
                for number, job in enumerate(plan):
                    if job.key not in self.record.finished:
                        self._stop_if_asked(stop)
                        self._run(job, number, stop)
            except (CoterieError, MemoryError):
                self.history.write(self.directory)  # what was computed before the mishap is kept
                raise
        task = self.experiment.federation(config.seeds[0]).task
        rows = summarise(
            self.history.frames(),
            task=task,
            report=config.report,
            targets=config.targets,
            reference=plan.reference.key,
            labels={system.key: system.label for system in plan.systems},
        )
        self.directory.write_summary(rows)
        return Result(self.directory.path, rows, config.name, tuple(self.diverged))

    def _run(self, job: Job, number: int, stop: StopRequest) -> None:
        """One job from its checkpoint, or from the start, to its models."""
        federation = self.experiment.federation(job.seed)
        self.metric = "accuracy" if federation.task == "classification" else "mae"
        self.record.check_source(job.seed, federation.source)
        simulation = self.experiment.simulation(job)
        if self.experiment.settle(simulation.resolved):
            self.experiment.write_config(self.directory)  # a resumed run then executes alike
        path = self.directory.checkpoint(*job.key)
        if path.exists():
            checkpoint.load(path, simulation)
            self.history.cut(*job.key, simulation.round)
        else:
            self.history.cut(*job.key, -1)
        self.display.begin(job, number, simulation.round)
        if simulation.round == 0:
            self._note(job, federation, simulation.initial_report())
        try:
            self._advance(job, federation, simulation, path, stop)
        except Diverged as error:
            self._give_up(job, federation, simulation, error)
        self._finish(job, federation, simulation)
        path.unlink(missing_ok=True)

    def _advance(self, job: Job, federation: Federation, simulation: Simulation, path: Path, stop: StopRequest) -> None:
        """The remaining rounds, with checkpoints."""
        self.saved, last = time.monotonic(), simulation.round
        while not simulation.finished:
            report = simulation.advance()
            self._note(job, federation, report)
            if simulation.finished:
                return
            due = report.round - last >= self.experiment.config.checkpoint_every
            late = time.monotonic() - self.saved >= CHECKPOINT_SECONDS
            if due or late or stop.number is not None:
                self._save(path, simulation)
                last = report.round
            self._stop_if_asked(stop)

    def _give_up(self, job: Job, federation: Federation, simulation: Simulation, error: Diverged) -> None:
        """Every client failed: the rounds before are kept, and the other methods still run."""
        for client in federation.names:
            self.history.add_failure(*job.key, simulation.round, client, str(error))
        self.diverged.append(f"{job.system.label} seed {job.seed}, round {simulation.round}: {error}")
        self.display.warn(self.diverged[-1])

    def _note(self, job: Job, federation: Federation, report: RoundReport) -> None:
        """One round into the history, and onto the screen."""
        key = (*job.key, report.round)
        for split, metrics in report.evaluations.items():
            for metric, values in metrics.items():
                self.history.add_clients(*key, split, federation.names, report.n[split], metric, values)
        self.history.add_ledger(*key, report.ledger)
        for phase, seconds in report.seconds.items():
            self.history.add_timing(*key, phase, seconds)
        for failure in report.failures:
            self.history.add_failure(*key, failure.client, failure.reason)
            self.display.warn(f"{job.system.label} seed {job.seed}, round {report.round}: {failure}")
        standing = self._standing(job, report.round, report.round) if "test" in report.evaluations else None
        self.display.advance(report.round, standing)

    def _standing(self, job: Job, round: int, reference_round: int) -> Standing | None:
        """Mean test result at ``round`` and gain over LOCAL, with the same seed, at ``reference_round``."""
        own = self.history.latest(*job.key, "test", self.metric, round=round)
        if own is None:
            return None
        gain = None
        reference = self._reference(job)
        alone = self.history.latest(*reference.key, "test", self.metric, round=reference_round)
        if alone is not None and job != reference:
            difference = float(np.nanmean((own - alone).to_numpy()))
            gain = 100 * difference if self.metric == "accuracy" else -difference
        return Standing(round, self.metric, float(np.nanmean(own.to_numpy())), gain)

    def _save(self, path: Path, simulation: Simulation) -> None:
        """History first: whatever a kill leaves, the history reaches at least to the checkpoint."""
        self.history.write(self.directory)
        checkpoint.save(path, simulation)
        self.saved = time.monotonic()

    def _finish(self, job: Job, federation: Federation, simulation: Simulation) -> None:
        """Models, traffic by client, history; only then the job counts as finished."""
        report = simulation.report_round
        if self.experiment.config.save_models:
            models = simulation.report_models().tensors
            save_models(self.directory, *job.key, federation.names, models, round=report)
        self._note_traffic(job, federation, simulation)
        self.history.write(self.directory)
        self.record.finish(job.key)
        frames, reference = self.history.frames(), self._reference(job)
        alone = choose_round(_rows_of(frames.clients, reference), self.experiment.config.report, metric=self.metric)
        seconds = float(_rows_of(frames.timings, job)["seconds"].sum())
        failed = int(_rows_of(frames.failures, job)["client"].nunique())
        self.display.finish(job, self._standing(job, report, alone), seconds, failed)

    def _reference(self, job: Job) -> Job:
        """LOCAL with the seed of ``job``."""
        return Job(self.experiment.plan.reference, job.seed)

    def _note_traffic(self, job: Job, federation: Federation, simulation: Simulation) -> None:
        """Bytes of the whole run by client, in roster order, beside the last round's results."""
        n = np.asarray(federation.train.n)
        totals = simulation.ledger.per_client()
        for (phase, direction, kind), rows in totals.groupby(["phase", "direction", "kind"], sort=False):
            metric, values = f"bytes_{direction}:{kind}", rows["bytes"].to_numpy()
            key = (*job.key, simulation.round)
            self.history.add_clients(*key, "", federation.names, n, metric, values, phase=str(phase))

    def _stopping(self) -> None:
        self.display.say("Finishing this round, then saving. Press Ctrl-C again to stop at once.")

    def _stop_if_asked(self, stop: StopRequest) -> None:
        if stop.number is not None:
            raise Interrupted(self.directory.path, stop.number)


def _rows_of(frame: pd.DataFrame, job: Job) -> pd.DataFrame:
    algorithm, variant, seed = job.key
    chosen = (frame["algorithm"] == algorithm) & (frame["variant"] == variant) & (frame["seed"] == seed)
    return frame[chosen]
