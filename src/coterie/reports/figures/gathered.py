"""Of one run or several, the rows that are wanted, each system under a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from coterie.config.explain import nearest
from coterie.errors import CoterieError
from coterie.evaluation import System
from coterie.reports.figures.choice import Choice
from coterie.reports.figures.style import Look, looks
from coterie.reports.joining import run_names
from coterie.reports.opened import OpenedRun


@dataclass(frozen=True)
class Names:
    """What systems of several runs are called: by their label, with the run's name where two runs have it.

    ``runs`` are the runs' names by their resolved paths.
    """

    shared: frozenset[str]
    runs: Mapping[Path, str]

    @classmethod
    def of(cls, runs: Sequence[OpenedRun]) -> Names:
        """The names for ``runs``."""
        counted = Counter(label for run in runs for label in dict.fromkeys(run.about.labels.values()))
        paths = [run.directory.path.resolve() for run in runs]
        return cls(
            frozenset(label for label, times in counted.items() if times > 1),
            dict(zip(paths, run_names(runs), strict=True)),
        )

    def __call__(self, run: OpenedRun, label: str) -> str:
        """The name of a system of ``run``."""
        return f"{label} ({self.runs[run.directory.path.resolve()]})" if label in self.shared else label


def wanted(run: OpenedRun, choice: Choice) -> list[System]:
    """The systems of a run that ``choice`` names, by label or by method, in the order of the experiment."""
    known = dict.fromkeys([*run.about.labels, *run.systems])
    if not choice.systems:
        return list(known)
    return [system for system in known if {run.about.label(system), system[0]} & set(choice.systems)]


def check_runs(runs: Sequence[OpenedRun]) -> None:
    """Raise CoterieError for a run that is given twice, however its path is written."""
    seen: set[Path] = set()
    for run in runs:
        path = run.directory.path
        if path.resolve() in seen:
            raise CoterieError(f"{path} is given twice; a figure shows each run once.")
        seen.add(path.resolve())


def check_choice(runs: Sequence[OpenedRun], choice: Choice) -> None:
    """Raise CoterieError for a system or a seed that no run has."""
    names = {name: None for run in runs for system in run.about.labels for name in (run.about.label(system), system[0])}
    for asked in choice.systems:
        if asked not in names:
            labels = ", ".join(dict.fromkeys(label for run in runs for label in run.about.labels.values()))
            raise CoterieError(f"--system {asked}: there are {labels}{meant(asked, list(names)) or '.'}")
    seeds = sorted({seed for run in runs for seed in run.about.seeds})
    if choice.seed is not None and choice.seed not in seeds:
        raise CoterieError(f"--seed {choice.seed}: there are {', '.join(map(str, seeds))}.")


def gathered(
    runs: Sequence[OpenedRun], choice: Choice, series: Callable[[OpenedRun], pd.DataFrame], *, alone: bool = True
) -> tuple[pd.DataFrame, dict[str, Look]]:
    """The rows of a series for all runs, and how each system is drawn.

    Parameters
    ----------
    runs : sequence of OpenedRun
    choice : Choice
        Its systems and seed.
    series : callable
        A data frame with a column ``label`` from a run.
    alone : bool
        Keep the system that trains alone.
    """
    names, frames, order, locals_ = Names.of(runs), [], [], set()
    for run in runs:
        frame = series(run.of_seed(choice.seed))
        reference = run.about.label(run.about.reference)
        labels = {run.about.label(system): names(run, run.about.label(system)) for system in wanted(run, choice)}
        order += [names(run, label) for label in run.about.labels.values()]
        locals_.add(names(run, reference))
        if not alone:
            labels.pop(reference, None)
        frame = frame[frame["label"].isin(labels)]
        frames.append(frame.assign(label=frame["label"].map(labels)))
    rows = pd.concat(frames, ignore_index=True)
    return rows, looks(list(dict.fromkeys([*order, *rows["label"]])), locals_)


def without(runs: Sequence[OpenedRun], what: str, remedy: str = "") -> CoterieError:
    """The sentence where ``runs`` lack what a figure shows."""
    where = " and ".join(str(run.directory.path) for run in runs)
    return CoterieError(f"{where}: {what}{f'; {remedy}' if remedy else ''}.")


def meant(word: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that is not among ``known``: what was meant, or nothing."""
    spelt = {name.lower(): name for name in reversed(known)}
    found = nearest(word, list(spelt))
    return f"; did you mean {spelt[found]}?" if found else ""
