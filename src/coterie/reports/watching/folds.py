"""The folds of a guard, which are run directories of their own inside that of the run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coterie.config import GuardConfig
from coterie.errors import CoterieError
from coterie.reports.opened import open_run
from coterie.reports.words import counted
from coterie.runs import Record, RunDirectory


@dataclass(frozen=True)
class Folds:
    """How far the folds have come.

    Attributes
    ----------
    of : int
        How many there are.
    begun : int
        How many have begun; the last of these is being trained, unless it is over.
    over, runs, round, rounds : int
        Of the last one: how many of its runs are over, how many there are, the round that is reached in one that goes
        on, and how many rounds each shall have.
    """

    of: int
    begun: int = 0
    over: int = 0
    runs: int = 0
    round: int = 0
    rounds: int = 0

    def sentence(self, others_left: bool) -> str:
        """What the guard does, or will do once no other run is left."""
        if others_left:
            return f"Then the guard trains {self.of} folds." if self.of else "Then the guard decides."
        if self.begun == self.of and self.over == self.runs:
            return "The guard decides."
        at = f": {self.over} of {counted(self.runs, 'run')} over" if self.runs else ""
        going = f", another in round {self.round} of {self.rounds}" if self.round and self.over < self.runs else ""
        return f"The guard trains fold {max(1, self.begun)} of {self.of}{at}{going}."


def places(run: RunDirectory) -> list[RunDirectory]:
    """The folds that have begun, in order."""
    found: list[RunDirectory] = []
    while (fold := RunDirectory(run.guard_fold(len(found)))).environment.exists():
        found.append(fold)
    return found


def folds_of(run: RunDirectory, config: Mapping[str, Any]) -> Folds:
    """How far the folds of a run have come; what cannot be read says nothing."""
    section = config.get("guard")
    of = section.get("folds") if isinstance(section, Mapping) else None
    if not isinstance(of, int):
        of = GuardConfig().folds
    begun = places(run)
    with suppress(CoterieError, OSError):
        if begun:
            seen = open_run(begun[-1].path)
            runs = [(*system, seed) for seed in seen.about.seeds for system in seen.about.labels]
            over = set(Record.of(begun[-1]).finished)
            table = seen.tables.timings
            names = zip(table["algorithm"].astype(str), table["variant"].astype(str), table["seed"], strict=True)
            going = table["round"][[name not in over for name in names]]
            round = int(going.max()) if len(going) else 0
            return Folds(of, len(begun), len(over & set(runs)), len(runs), round, seen.about.rounds)
    return Folds(of, len(begun))
