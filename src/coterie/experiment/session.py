"""One sitting of an experiment: the jobs that are not finished yet, one after the other or side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.markup import escape

from coterie.engines import RoundReport
from coterie.errors import CoterieError, Interrupted
from coterie.evaluation import Task, choose_round, gain_scale, macro, main_metric, summarise, summarise_newcomers
from coterie.experiment.display import Display, Standing
from coterie.experiment.guarding_newcomers import guard_newcomers
from coterie.experiment.interrupt import StopRequest, listening
from coterie.experiment.plan import Job, System, shown
from coterie.experiment.processes import Processes, how_many
from coterie.experiment.result import Result
from coterie.experiment.setting import slow_precision
from coterie.experiment.sharing import carry_out_together, chosen_share, grouped, measured_executor, stack_of
from coterie.experiment.tracked import subject, tracking
from coterie.experiment.work import Closing, Opening
from coterie.federation.portrait import portrait
from coterie.reports import open_run
from coterie.runs import About, History, NewcomersDirectory, RunDirectory
from coterie.runs.atomic import write_json
from coterie.runs.record import Key, Record

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment


WRITING_SHARE = 0.1
"""Of the time, for tables that would be written only because a job has ended."""

DIVISIONS = ("head_layers", "shared_layers")
"""Options that say where a method divides the model; unset: before its head."""


class Session:
    """One sitting of an experiment; it keeps the books of all jobs (an `Observer`)."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunDirectory,
        history: History,
        record: Record,
        console: Console | None,
    ) -> None:
        self.experiment, self.directory, self.history, self.record = experiment, run, history, record
        self.console = console
        self.display = Display(experiment.plan, experiment.config.rounds, console)
        self.tracking = tracking(experiment, run, self.display.warn)
        self.stop = StopRequest()
        self._openings: dict[Key, Opening] = {}
        self._written, self._moment, self._effort = -1, 0.0, 0.0
        self._over: list[Job] = []  # their results are not on disk yet

    def run(self) -> Result:
        """Run what is left, then write the summary."""
        config, plan = self.experiment.config, self.experiment.plan
        left = [job for job in plan if job.key not in self.record.finished]
        self.record.check_recipe(self.experiment.recipe())
        self.record.check_methods({system.key: system.told() for system in plan.systems})
        self._describe()
        with self.display, self.tracking, listening(self._stopping) as self.stop:
            groups = self._groups(left)
            seeds = max((len(group) for group in groups), default=1)
            count, threads = how_many(self.experiment, len(groups), seeds) if left else (1, 1)
            self.display.start(len(plan) - len(left), count, seeds, self.directory.path)
            self._name_newcomers()
            self._name_the_slow_layer()
            self._name_the_undivided()
            self._name_who_judges_without_validation()
            if slow := slow_precision(config):
                self.display.warn(slow)
            self._choose_executor(left, threads)
            try:
                self._carry_out(groups, count, threads)
                self._write()
            except BaseException:
                with suppress(CoterieError):
                    self._write()  # what was computed before the mishap is kept
                raise
        if any(job.key not in self.record.finished for job in plan):
            raise Interrupted(self.directory.path, self.stop.number or 0)
        self.experiment.stopped = self.stop.number
        guard = self.experiment.guard(self.directory, self.console)
        if self.stop.number is not None and guard.trains:
            raise Interrupted(self.directory.path, self.stop.number)  # it came in the last round
        remarks = guard.run(self.history)
        if remarks:
            self._write()
        task = self.experiment.federation(config.seeds[0]).task
        rows = summarise(
            self.history.frames(self._runs),
            task=task,
            report=config.report,
            targets=config.targets,
            reference=plan.reference.key,
            labels={system.key: system.label for system in self._systems},
            metric=config.metric,
        )
        self.directory.write_summary(rows)
        remarks += self._untold(rows)
        newcomers: list[dict[str, Any]] = []
        if config.newcomers is not None and config.newcomers.clients:
            newcomers, more = self._newcomers(task)
            remarks += more
        if config.page:
            self._report()
        return Result(self.directory.path, rows, config.name, tuple(self.record.diverged), newcomers, tuple(remarks))

    def _untold(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """A sentence on the systems that have no row."""
        told = {(row["algorithm"], row["variant"] or "") for row in rows}
        labels = [system.label for system in self.experiment.plan.systems if system.key not in told]
        if not labels:
            return []
        return [
            f"{', '.join(labels)}: no client has told a result, so that none is reported; real sites keep theirs where "
            "policy.evaluation says so, and have their models all the same"
        ]

    @property
    def _systems(self) -> list[System]:
        """All systems of the tables: those that are trained, each followed by what the guard makes of it."""
        return shown(self.experiment.plan.systems)

    @property
    def _runs(self) -> list[Key]:
        """All runs of the tables, in order."""
        return [Job(system, seed).key for seed in self.experiment.plan.seeds for system in self._systems]

    def _report(self) -> None:
        """The page about this run; what was computed stands, whatever becomes of the page."""
        from coterie.reports.page import write_page

        try:
            write_page(open_run(self.directory.path))
        except CoterieError as error:
            self.display.warn(f"no report: {error}")

    def _describe(self) -> None:
        """What this experiment is, and whose data it is about, for those who read the run directory."""
        config, plan = self.experiment.config, self.experiment.plan
        federation = self.experiment.federation(config.seeds[0])
        About(
            name=config.name,
            task=federation.task,
            report=config.report,
            rounds=config.rounds,
            seeds=plan.seeds,
            targets=tuple(config.targets),
            labels={system.key: system.label for system in self._systems},
            reference=plan.reference.key,
            chosen=config.metric,
        ).write(self.directory)
        if not self.directory.federation.exists():
            write_json(self.directory.federation, portrait(federation, samples=config.save_samples))

    def _newcomers(self, task: Task) -> tuple[list[dict[str, Any]], list[str]]:
        """The summary of the newcomers of all jobs and what could not be done, written and returned."""
        plan, folder = self.experiment.plan, NewcomersDirectory(self.directory.newcomers)
        decided = guard_newcomers(self.experiment, self.directory, folder, list(plan), task)
        rows = summarise_newcomers(
            folder.read(self._runs),
            task=task,
            reference=plan.reference.key,
            labels={system.key: system.label for system in self._systems},
            metric=self.experiment.config.metric,
        )
        remarks = [*folder.remarks([job.key for job in plan]), *decided]
        folder.write_summary(rows, remarks)
        for job in plan:
            if not folder.table(*job.key).exists() and self.directory.server(*job.key).exists():
                self.display.warn(
                    f"the newcomers of {job.system.label}, seed {job.seed}, are missing in {folder.path}: "
                    f"coterie adapt {self.directory.path} gives them again"
                )
        return rows, remarks

    def _name_newcomers(self) -> None:
        """Who is held out with the first seed."""
        first = self.experiment.config.seeds[0]
        if (newcomers := self.experiment.newcomers(first)) is not None:
            names = f"{', '.join(newcomers.names[:8])}{' ...' if len(newcomers.names) > 8 else ''}"
            self.display.say(escape(f"held out as newcomers with seed {first}: {names}"))

    def _name_the_slow_layer(self) -> None:
        """Why clients train one after the other, where a layer is the reason."""
        if self.experiment.config.executor != "loop" and (reason := stack_of(self.experiment).in_turn):
            self.display.say(escape(f"clients train one after the other: {reason}"))

    def _name_the_undivided(self) -> None:
        """Methods that divide the model before its head, where nothing lies before it."""
        if stack_of(self.experiment).layout.part("body"):
            return
        methods = ((system.label, vars(system.method)) for system in self.experiment.plan.systems)
        labels = [label for label, options in methods if any(options.get(key, 0) is None for key in DIVISIONS)]
        if labels:
            self.display.warn(
                f"{', '.join(labels)}: all layers of the model are its head, so that it has no body to share or to "
                "keep; choose a model with more layers"
            )

    def _name_who_judges_without_validation(self) -> None:
        """Methods that compare models on validation examples, where clients have none."""
        labels = [s.label for s in self.experiment.plan.systems if s.method.compares_on_validation]
        n = self.experiment.federation(self.experiment.config.seeds[0]).validation.n
        if labels and (without := int((n == 0).sum())):
            whose = "no client has" if without == len(n) else f"{without} of {len(n)} clients do not have"
            self.display.warn(
                f"{', '.join(labels)}: models are compared on validation examples, of which {whose} any; there it is "
                "training examples, on which a client's own model is nearly always best. Hold some out by "
                "federation.validation, such as 0.2"
            )

    def _groups(self, left: list[Job]) -> list[list[Job]]:
        """The jobs that are left, those that share a stack together; a resumed run then has the same groups."""
        if left and self.experiment.settle({"share": chosen_share(self.experiment)}):
            self.experiment.write_config(self.directory)
        return grouped(self.experiment, left)

    def _choose_executor(self, left: list[Job], threads: int) -> None:
        """Measure once for all jobs: each by itself, in its process, might choose another one."""
        config = self.experiment.config
        if left and config.executor == "fastest" and config.engine == "simulation":  # actors measure for themselves
            self.experiment.settle({"executor": measured_executor(self.experiment, left[0], threads)})
            self.experiment.write_config(self.directory)

    def _carry_out(self, groups: list[list[Job]], count: int, threads: int) -> None:
        """The jobs, in this process or in several."""
        if count > 1:
            with Processes(self.experiment, self.directory, count, threads) as processes:
                processes.run(groups, self)
            return
        for group in groups:
            if self.stop.number is not None or not carry_out_together(self.experiment, group, self.directory, self):
                return

    # --- the books of a job --------------------------------------------------------------------------------------
    def began(self, job: Job, opening: Opening) -> None:
        """The same data as before; what a killed run wrote after its checkpoint is dropped."""
        self._openings[job.key] = opening
        self.record.check_source(job.seed, opening.source)
        self.record.note_method(job.system.key, job.system.told())
        self.directory.write_schema(job.seed, opening.source)
        if self.experiment.settle(opening.resolved):
            self.experiment.write_config(self.directory)  # a resumed run then executes alike
        self.history.cut(*job.key, opening.round, owed=opening.owed)
        if opening.round > 0 and not self.history.reaches(*job.key, opening.round):
            raise CoterieError(
                f"the tables of {self.directory.path} end before the checkpoint of {job.system.label}, seed {job.seed} "
                f"(round {opening.round}), so a file is missing or older: put it back, or delete "
                f"{self.directory.checkpoint(*job.key)} to run this part again."
            )
        if self.tracking.sinks:
            about = subject(self.experiment, job, self.directory)
            self.tracking.begin(job.key, about, self.history.measured(*job.key))
        self.display.begin(job, max(opening.round, 0))

    def noted(self, job: Job, report: RoundReport) -> bool:
        """One round into the history, and onto the screen; whether a stop was asked for."""
        key, names = (*job.key, report.round), self._openings[job.key].names
        before = self.history.lengths
        for split, metrics in report.evaluations.items():
            for metric, values in metrics.items():
                self.history.add_clients(*key, split, names, report.n[split], metric, values)
        for split, found in report.undefined.items():
            for metric, clients in found.items():
                for client, reason in clients.items():
                    self.history.add_undefined(*job.key, split, metric, client, reason)
        self.history.add_ledger(*key, report.ledger)
        for name, value in report.notes.items():
            self.history.add(*key, "", name, value, phase="train")
        for name, values in report.strengths.items():
            self.history.add_clients(*key, "", names, self._openings[job.key].n, name, values, phase="train")
        for phase, seconds in report.seconds.items():
            self.history.add_timing(*key, phase, seconds)
        self.tracking.note(job.key, self.history.measured(*job.key, after=before))
        for failure in report.failures:
            self.history.add_failure(*key, failure.client, failure.reason)
            self.display.warn(f"{job.system.label} seed {job.seed}, round {report.round}: {failure}")
        standing = self._standing(job, report.round, report.round) if "test" in report.evaluations else None
        self.display.advance(job, report.round, standing)
        return self.stop.number is not None

    def saving(self, job: Job) -> None:
        """History first: whatever a kill leaves, the history reaches at least to the checkpoint."""
        self._write()

    def gave_up(self, job: Job, round: int, reason: str) -> None:
        """Every client failed: the rounds before are kept, and the other methods still run."""
        for client in self._openings[job.key].names:
            self.history.add_failure(*job.key, round, client, reason)
        self.tracking.end(job.key, "failed")
        self.record.diverged.append(f"{job.system.label} seed {job.seed}, round {round}: {reason}")
        self.display.warn(self.record.diverged[-1])

    def finished(self, job: Job, closing: Closing) -> None:
        """Traffic by client and history; jobs that end one after the other are written together, if that takes long."""
        self._note_traffic(job, closing)
        self.tracking.end(job.key, "finished")
        self._over.append(job)
        if time.monotonic() - self._moment >= self._effort / WRITING_SHARE:
            self._write()
        reference = self._reference(job)
        frames = self.history.frames([job.key, reference.key])
        metric, alone = self._metric(job), None
        told = self.history.latest(*reference.key, "test", metric) is not None
        if told and (reference.key in self.record.finished or reference in self._over):
            rows = _rows_of(frames.clients, reference)
            alone = choose_round(rows, self.experiment.config.report, metric=metric)
        seconds = float(_rows_of(frames.timings, job)["seconds"].sum())
        failed = int(_rows_of(frames.failures, job)["client"].nunique())
        self.display.finish(job, self._standing(job, closing.report, alone), seconds, failed)

    def _standing(self, job: Job, round: int, reference_round: int | None) -> Standing | None:
        """Mean test result at ``round`` and gain over LOCAL, with the same seed, at ``reference_round``."""
        metric, reference = self._metric(job), self._reference(job)
        own = self.history.latest(*job.key, "test", metric, round=round)
        if own is None:
            return None
        alone, gain = None, None
        if reference_round is not None and job.key != reference.key:
            alone = self.history.latest(*reference.key, "test", metric, round=reference_round)
        if alone is not None:
            gain = gain_scale(metric) * macro((own - alone).to_numpy())
        return Standing(round, metric, macro(own.to_numpy()), gain)

    def _metric(self, job: Job) -> str:
        return main_metric(self._openings[job.key].task, self.experiment.config.metric)

    def _write(self) -> None:
        """The tables, in the order of the plan, whichever job was faster; only then jobs count as finished.

        Jobs that save together write them once.
        """
        if self.history.version != self._written:
            begin = time.monotonic()
            self.history.arrange(self._runs)
            self.history.write(self.directory)
            self._written, self._moment = self.history.version, time.monotonic()
            self._effort = self._moment - begin
        while self._over:
            job = self._over.pop(0)
            self.record.finish(job.key)
            self.directory.checkpoint(*job.key).unlink(missing_ok=True)

    def _reference(self, job: Job) -> Job:
        """LOCAL with the seed of ``job``."""
        return Job(self.experiment.plan.reference, job.seed)

    def _note_traffic(self, job: Job, closing: Closing) -> None:
        """Bytes of the whole run by client, in roster order, beside the last round's results."""
        opening = self._openings[job.key]
        for (phase, direction, kind), rows in closing.traffic.groupby(["phase", "direction", "kind"], sort=False):
            metric, values = f"bytes_{direction}:{kind}", rows["bytes"].to_numpy()
            key = (*job.key, closing.round)
            self.history.add_clients(*key, "", opening.names, opening.n, metric, values, phase=str(phase))

    def _stopping(self) -> None:
        self.display.say("Finishing this round, then saving. Press Ctrl-C again to stop at once.")


def _rows_of(frame: pd.DataFrame, job: Job) -> pd.DataFrame:
    algorithm, variant, seed = job.key
    chosen = (frame["algorithm"] == algorithm) & (frame["variant"] == variant) & (frame["seed"] == seed)
    return frame[chosen]
