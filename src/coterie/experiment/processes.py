"""Jobs side by side, in processes of their own; this side hands them out, group by group, and keeps the books.

Two jobs share nothing but the run directory, so that processes divide a machine's cores without loss, where threads
inside one small model's steps would wait for one another most of the time. Results do not depend on it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from coterie.engines.room import memory
from coterie.engines.workers import MACHINE_THREADS
from coterie.errors import CoterieError
from coterie.experiment.costs import parameters, work
from coterie.experiment.interrupt import SIGNALS
from coterie.experiment.plan import Job
from coterie.experiment.work import Observer
from coterie.federation.datasets import find_source
from coterie.models.factory import find_factory
from coterie.runs import RunDirectory
from coterie.signals import signals_held

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment

WORTHWHILE = 20.0
"""Seconds of training below which more processes are not started: each takes some to import what it needs."""

PROCESS_BYTES, COPIES = 600e6, 12
"""Memory of the libraries in one process, and of one run in numbers of its models; for the limit of processes."""


def how_many(experiment: Experiment, jobs: int, seeds: int = 1) -> tuple[int, int]:
    """Processes for ``jobs`` jobs on this machine, and threads for each; of a job, ``seeds`` share a stack.

    As many as there are cores (or ``workers``) for, unless the configuration says otherwise, the work is not worth
    it, memory would run short, the jobs share a GPU, or a method or model lives in the script that was started, where
    no other process could find it.
    """
    config = experiment.config
    cores = config.workers or MACHINE_THREADS
    if config.engine != "simulation":  # the actors of a cluster, or the sites, share one job among them
        return 1, config.threads or 1
    if experiment.given is not None:  # it is in this process only
        return 1, config.threads or cores
    if "__main__" in modules_of(experiment):
        return 1, config.threads or cores
    if config.processes is None:
        on_gpu = config.device.startswith("cuda")
        wanted = 1 if on_gpu or work(experiment, jobs, seeds) < WORTHWHILE else cores // (config.threads or 1)
        wanted = min(wanted, memory_for(experiment))
    else:
        wanted = config.processes
    count = max(1, min(wanted, jobs))
    return count, config.threads or max(1, cores // count)


def modules_of(experiment: Experiment) -> list[str]:
    """The modules that define the methods, the model, the source and the rule of an experiment."""
    federation = experiment.config.federation
    found = {type(system.method).__module__ for system in experiment.plan.systems}
    found |= {find_factory(experiment.config.model.name).__module__, find_source(federation.source).module}
    return sorted(found | {type(federation.partition).__module__})


def memory_for(experiment: Experiment) -> int:
    """For how many processes half of the machine's memory is enough."""
    federation = experiment.federation(experiment.config.seeds[0])
    data = sum(split.inputs.nbytes for split in (federation.train, federation.validation, federation.test))
    return int(memory() / 2 / (PROCESS_BYTES + COPIES * 4 * federation.k * parameters(experiment) + data))


class Worker:
    """One process that runs ``module``; what it says is put into ``inbox`` beside it, and None when it has ended."""

    def __init__(self, inbox: SimpleQueue[tuple[Worker, Any]], threads: int, module: str) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        with signals_held(*SIGNALS):  # it inherits this until it ignores signals by itself
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        self.jobs: list[int] = []
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def _listen(self, inbox: SimpleQueue[tuple[Worker, Any]]) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                inbox.put((self, pickle.load(self.process.stdout)))
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            inbox.put((self, None))

    def send(self, message: Any) -> None:
        """Answer or instruct; a worker that is gone makes itself known through the inbox."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()

    def close(self) -> None:
        """Let it end by itself: it stops at the end of what it is told."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def end(self) -> int:
        """Wait for its end, by force after a moment; its exit code."""
        self.close()
        try:
            return self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Team:
    """Worker processes that are told the same at first; a context manager that leaves none behind.

    Parameters
    ----------
    count, threads : int
        Processes, and computing threads in each.
    told : any
        What each is told first.
    module : str
        What runs in them.
    """

    def __init__(self, count: int, threads: int, told: Any, module: str = "coterie.experiment.worker") -> None:
        self._inbox: SimpleQueue[tuple[Worker, Any]] = SimpleQueue()
        self._workers = [Worker(self._inbox, threads, module) for _ in range(count)]
        for worker in self._workers:
            worker.send(told)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for worker in self._workers:
            if kind is not None:
                worker.process.kill()
            worker.end()


class Processes(Team):
    """Workers for the jobs of one experiment.

    Parameters
    ----------
    experiment : Experiment
        What each worker builds again for itself.
    directory : RunDirectory
        Where checkpoints and models go.
    count, threads : int
        Processes, and computing threads in each.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory, count: int, threads: int) -> None:
        self._plan = list(experiment.plan)
        config = experiment.config.model_copy(update={"threads": threads})
        super().__init__(count, threads, (modules_of(experiment), config, experiment.data_dir, directory.path))

    def run(self, groups: Iterable[Sequence[Job]], observer: Observer) -> None:
        """Hand out the groups of jobs in their order until none is left or one was told to stop.

        Raises
        ------
        CoterieError
            What stopped a job; the others have saved and stopped before.
        """
        waiting, ending = deque([self._plan.index(job) for job in group] for group in groups), False
        busy = set(self._workers)
        error: BaseException | None = None
        for worker in self._workers:
            self._next(worker, waiting, ending)
        while busy:
            worker, message = self._inbox.get()
            if worker not in busy:
                continue
            kind: str
            content: Any
            kind, content = message if message is not None else ("failed", self._death(worker))
            if kind == "call":
                try:
                    worker.send(self._call(observer, content) or ending)
                except CoterieError as problem:  # the data are not those of the run's beginning, or the disk is full
                    kind, content = "failed", problem
            if kind == "ended":  # True where the jobs are complete, False where they saved and stopped
                ending = ending or not content
                self._next(worker, waiting, ending)
            elif kind == "failed":
                error, ending = error or content, True
                worker.process.kill()
            if kind == "failed" or not worker.jobs:
                busy.discard(worker)
        if error is not None:
            raise error

    def _next(self, worker: Worker, waiting: deque[list[int]], ending: bool) -> None:
        worker.jobs = waiting.popleft() if waiting and not ending else []
        if worker.jobs:
            worker.send(worker.jobs)
        else:
            worker.close()

    def _call(self, observer: Observer, content: tuple[str, int, Mapping[str, Any]]) -> Any:
        name, number, arguments = content
        return getattr(observer, name)(self._plan[number], **arguments)

    def _death(self, worker: Worker) -> CoterieError:
        job = self._plan[worker.jobs[0] if worker.jobs else 0]
        return death(worker, f"{job.system.label}, seed {job.seed}", "coterie resume")


def death(worker: Worker, what: str, command: str) -> CoterieError:
    """What to say of a process that ended while it worked at ``what``; ``command`` goes on."""
    code = worker.end()
    cause, advice = f"exit code {code}" if code >= 0 else f"signal {-code}", ""
    if code == -9:
        cause, advice = "signal 9, often a lack of memory", "; processes: 1 in the configuration needs less memory"
    return CoterieError(f"the process of {what} ended unexpectedly ({cause}): go on with {command}{advice}.")
