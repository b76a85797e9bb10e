"""One process at a time in a run directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coterie.errors import CoterieError
from coterie.runs.directory import RunDirectory


@contextmanager
def locked(run: RunDirectory) -> Iterator[None]:
    """Hold the run directory; the system lets it go when the process ends, however it ends.

    Raises
    ------
    CoterieError
        Another process is at work in it.
    """
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    try:
        file = (run.checkpoints / ".lock").open("w")
    except OSError as error:
        raise CoterieError(
            f"Cannot write {run.checkpoints / '.lock'}: {error.strerror or error}; the run directory must be writable."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CoterieError(f"{run.path} is being worked on by another process: wait for it, or stop it.") from None
        except OSError:  # a file system without locks
            yield
            return
        yield
