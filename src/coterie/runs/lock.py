"""One process at a time in a run directory, and whether one is at work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import CoterieError

if TYPE_CHECKING:
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


def held(run: RunDirectory) -> bool:
    """Whether a process of this machine is seen to hold the directory; False says nothing, it may be elsewhere.

    The system's list of locks is read, no lock is tried: a run that starts at this moment must not be refused.
    """
    try:
        place = (run.checkpoints / ".lock").stat()
        locks = Path("/proc/locks").read_text(encoding="ascii")  # only Linux has it
    except OSError:
        return False
    name = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    return any("FLOCK" in words and "->" not in words and name in words for words in map(str.split, locks.splitlines()))
