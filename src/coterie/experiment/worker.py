"""A process that runs jobs of an experiment: instructions come on standard input, reports leave on standard output."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

from coterie.engines import RoundReport
from coterie.errors import CoterieError
from coterie.experiment.experiment import Experiment
from coterie.experiment.interrupt import SIGNALS
from coterie.experiment.plan import Job
from coterie.experiment.sharing import carry_out_together
from coterie.experiment.work import Closing, Opening
from coterie.runs import RunDirectory


class Pipe:
    """Pickled messages to and from the process that started this one; once that is gone, this one ends too."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def receive(self) -> Any:
        """The next message."""
        try:
            return pickle.load(self._incoming)
        except EOFError:
            raise SystemExit from None

    def send(self, message: Any) -> None:
        """Send a message."""
        try:
            pickle.dump(message, self._outgoing)
            self._outgoing.flush()
        except BrokenPipeError:
            raise SystemExit from None


class Correspondent:
    """An `Observer` that passes everything on and waits for the answer."""

    def __init__(self, pipe: Pipe, numbers: dict[tuple[str, str, int], int]) -> None:
        self._pipe, self._numbers = pipe, numbers

    def _call(self, name: str, job: Job, **arguments: Any) -> bool:
        self._pipe.send(("call", (name, self._numbers[job.key], arguments)))
        return bool(self._pipe.receive())

    def began(self, job: Job, opening: Opening) -> None:
        """See `Observer`."""
        self._call("began", job, opening=opening)

    def noted(self, job: Job, report: RoundReport) -> bool:
        """See `Observer`."""
        return self._call("noted", job, report=report)

    def saving(self, job: Job) -> None:
        """See `Observer`."""
        self._call("saving", job)

    def gave_up(self, job: Job, round: int, reason: str) -> None:
        """See `Observer`."""
        self._call("gave_up", job, round=round, reason=reason)

    def finished(self, job: Job, closing: Closing) -> None:
        """See `Observer`."""
        self._call("finished", job, closing=closing)


def serve(pipe: Pipe) -> None:
    """Build the experiment, then run the jobs that are asked for until no more are."""
    modules, config, data_dir, path = pipe.receive()
    try:
        for module in modules:
            import_module(module)  # a method may be registered by the import of its module
        experiment = Experiment(config, data_dir=data_dir)
        jobs = list(experiment.plan)
        correspondent = Correspondent(pipe, {job.key: number for number, job in enumerate(jobs)})
        while True:
            group = [jobs[number] for number in pipe.receive()]
            pipe.send(("ended", carry_out_together(experiment, group, RunDirectory(path), correspondent)))
    except Exception as error:
        pipe.send(("failed", portable(error)))


def portable(error: Exception) -> Exception:
    """An exception that can be pickled, with the place where it was raised as a note."""
    plain: Exception
    if isinstance(error, CoterieError):
        plain = CoterieError(str(error))
    elif isinstance(error, MemoryError):
        plain = MemoryError(str(error))
    else:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
    plain.add_note("".join(traceback.format_exception(error)))
    return plain


def main(serve: Callable[[Pipe], None] = serve) -> None:
    """Run as ``python -m coterie.experiment.worker``, by `coterie.experiment.processes` only."""
    # A signal to the whole group is for the process that started this one: it says when to save and stop.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    pipe = Pipe(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # whatever a model or a library prints must not get among the messages
    sys.stdin, sys.stdout = open(os.devnull), sys.stderr  # noqa: SIM115 -- for the life of the process
    serve(pipe)


if __name__ == "__main__":
    main()
