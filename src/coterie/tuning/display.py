"""What a person sees while a search goes on: a bar of all trials, one of the trial at work, a line for each result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from coterie.evaluation import metric_of
from coterie.tuning.space import Space
from coterie.tuning.trial import Trial


class Progressing:
    """Shows how a search goes on; a context manager.

    Parameters
    ----------
    total : int
        Trials of all methods together.
    metric : str
        By which is chosen.
    console : Console or None
        Where to; None shows nothing.
    """

    def __init__(self, total: int, metric: str, console: Console | None) -> None:
        self._total, self._metric, self._number = total, metric, 0
        self._best: dict[str, float] = {}
        self._tasks: dict[tuple[int, int], TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(compact=True),
            console=console or Console(quiet=True),
            transient=True,
            disable=console is None or not console.is_terminal,
        )
        self._all = self._bars.add_task("trials", total=total)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """One line above the bars."""
        self._bars.console.print(text, highlight=False, soft_wrap=True)

    def start(
        self, spaces: Sequence[Space], search: str, where: Path, earlier: Sequence[Trial], side_by_side: int
    ) -> None:
        """A line that stays: which search this is, how much of it was done before, and where its results go."""
        for trial in earlier:
            self._count(trial)
        methods = ", ".join(space.method for space in spaces)
        before = f", {len(earlier)} of them done" if earlier else ""
        together = f", {side_by_side} at a time" if side_by_side > 1 else ""
        self.say(escape(f"{search} search for {methods}: up to {self._total} trials{before}{together}, into {where}"))

    def begin(self, trial: Trial, seed: int, rounds: int) -> None:
        """A bar for one seed of a trial."""
        self._tasks[id(trial), seed] = self._bars.add_task(escape(f"{named(trial)}  seed {seed}"), total=rounds)

    def advance(self, trial: Trial, seed: int, round: int) -> None:
        """A round of it is over."""
        self._bars.update(self._tasks[id(trial), seed], completed=round)

    def end(self, trial: Trial, seed: int) -> None:
        """Its bar goes."""
        self._bars.remove_task(self._tasks.pop((id(trial), seed)))

    def done(self, trial: Trial) -> None:
        """A trial is over: a line that stays."""
        news = self._count(trial)
        if trial.score is None:
            self.say(f"[yellow]failed[/] {escape(f'{named(trial)}: {trial.reason}')}")
            return
        value = trial.score if metric_of(self._metric).larger_is_better else -trial.score
        shown = f"validation {self._metric} {value:.4f}"
        self.say(f"[green]done[/] {escape(named(trial))}  {shown}{'  [green]best[/]' if news else ''}")

    def _count(self, trial: Trial) -> bool:
        """Whether a finished trial is the best of its method so far."""
        self._number += 1
        self._bars.update(self._all, completed=self._number)
        best = self._best.get(trial.method)
        if trial.score is None or (best is not None and trial.score <= best):
            return False
        self._best[trial.method] = trial.score
        return True

    def stopping(self) -> None:
        """The first signal has come."""
        self.say("Finishing this round, then stopping. Press Ctrl-C again to stop at once.")


def named(trial: Trial) -> str:
    """A trial in words."""
    return " ".join([trial.method, *(f"{key}={value}" for key, value in trial.values.items())])
