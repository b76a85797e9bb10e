"""Reads a run directory again and again: only what has changed, and never so often that it costs the run its cores."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.reports.opened import OpenedRun, open_run
from coterie.reports.watching.folds import folds_of, places
from coterie.reports.watching.snapshot import Snapshot, snapshot
from coterie.runs import Record, RunDirectory, held
from coterie.yamltext import read_yaml

READING_SHARE = 0.1
"""Of the time, for reading."""


class Watcher:
    """Looks at a run directory; it writes nothing there and takes no lock.

    Parameters
    ----------
    path : Path
        The run directory.
    clock : callable
        The time, in seconds since the epoch.

    Raises
    ------
    CoterieError
        There is no such run directory.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._stamps: dict[Path, int] = {}
        self._rest_until = 0.0
        self.run, self._last = self._read()

    def look(self) -> Snapshot:
        """How the run stands now; a note says so where its directory cannot be read any more."""
        now, directory = self._clock(), RunDirectory(self.path)
        if time.monotonic() >= self._rest_until and _stamps(directory) != self._stamps:
            try:
                self.run, self._last = self._read()
            except CoterieError as error:
                return replace(self._last, notes=(str(error),), now=now, at_work=False)
        return replace(self._last, now=now, at_work=held(directory))

    def _read(self) -> tuple[OpenedRun, Snapshot]:
        begin = time.monotonic()
        directory = RunDirectory.open(self.path)
        stamps = _stamps(directory)
        record = None
        with suppress(CoterieError, OSError):
            record = Record.of(directory)  # before the tables, which are written before it
        run = open_run(self.path)
        config = _config(directory)
        written = max(stamps.values(), default=0) / 1e9
        seen = snapshot(
            run,
            record if record is not None and record.recipe else None,
            written=written,
            now=self._clock(),
            at_work=held(directory),
            share=_share(config),
            again="bash server/run.sh" if config.get("sites") else "coterie resume",
            folds=folds_of(directory, config),
        )
        self._stamps = stamps
        self._rest_until = time.monotonic() + (time.monotonic() - begin) * (1 / READING_SHARE - 1)
        return run, seen


def _stamps(directory: RunDirectory) -> dict[Path, int]:
    """When each file that tells how the run stands was written, in nanoseconds since the epoch."""
    files = [directory.environment, directory.about, directory.history, directory.clients, directory.timings]
    files += [directory.failures, directory.guard, directory.checkpoints / "progress.json"]
    for fold in places(directory):
        files += [fold.environment, fold.history, fold.checkpoints / "progress.json"]
    stamps = {}
    with suppress(OSError):  # a folder that vanishes meanwhile
        files += directory.checkpoints.glob("*/*.pt")
    for file in files:
        with suppress(OSError):
            stamps[file] = file.stat().st_mtime_ns
    return stamps


def _config(directory: RunDirectory) -> dict[str, Any]:
    """The configuration as it is stored; empty where there is none that can be read."""
    with suppress(CoterieError, OSError, ValueError):
        content = read_yaml(directory.config.read_text(encoding="utf-8"), "config.yaml")
        return content if isinstance(content, dict) else {}
    return {}


def _share(config: dict[str, Any]) -> int:
    """Seeds that train in one stack."""
    share = config.get("share")
    return share if isinstance(share, int) and share > 0 else 1
