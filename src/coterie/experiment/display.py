"""What a person sees while an experiment runs: bars on a terminal, one line a finished run anywhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from coterie.evaluation import metric_of
from coterie.experiment.plan import Job, Plan
from coterie.runs.record import Key

logger = logging.getLogger("coterie.experiment")


@contextmanager
def busy(console: Console | None, text: str) -> Iterator[None]:
    """A spinner on a terminal while something takes a moment; nothing elsewhere."""
    if console is None or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@dataclass(frozen=True)
class Standing:
    """How a run stands after a round: mean over the clients on the test split.

    Attributes
    ----------
    round : int
        The round that was evaluated.
    metric : str
        In which results are reported.
    value : float
        Mean over the clients.
    gain : float or None
        Mean gain over LOCAL: percentage points of a share such as accuracy, the error saved, or what is gained in
        the metric, such as R²; None for LOCAL itself.
    """

    round: int
    metric: str
    value: float
    gain: float | None

    def __str__(self) -> str:
        """``accuracy 0.741  gain +2.3 pp``; errors, which may have any size, by their first digits."""
        kind = metric_of(self.metric)
        value = f"{self.metric} {format(self.value, '.3f' if kind.larger_is_better else '.4g')}"
        if self.gain is None:
            return value
        return f"{value}  gain {f'{self.gain:+.1f} pp' if kind.is_share else f'{self.gain:+.3g}'}"


class Display:
    """Shows the progress of a plan, one bar a run that goes on; a context manager.

    Parameters
    ----------
    plan : Plan
        What will run.
    rounds : int
        Rounds of each run.
    console : Console or None
        Where to; None shows nothing.
    """

    def __init__(self, plan: Plan, rounds: int, console: Console | None) -> None:
        self._plan, self._rounds = plan, rounds
        self._console = console or Console(quiet=True)
        self._wide = max(len(system.label) for system in plan.systems)
        self._seed_wide = max(len(str(seed)) for seed in plan.seeds)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[position]}"),
            TextColumn("{task.fields[standing]}", style="cyan"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
            disable=console is None or not console.is_terminal,
            speed_estimate_period=20,
        )
        self._all: TaskID | None = None
        self._tasks: dict[Key, TaskID] = {}
        self._rounds_of: dict[Key, int] = {}
        self._done = 0

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

    def start(self, done: int, side_by_side: int, seeds: int, where: Path) -> None:
        """A line that stays: how many runs there are, ``done`` of them earlier, how many go on at once, and where.

        ``seeds`` is how many share a stack.
        """
        self._done = done
        before = f", {done} of them done" if done else ""
        at_once = min(side_by_side * seeds, len(self._plan) - done)
        together = f", {at_once} at a time" if at_once > 1 else ""
        together += f" ({seeds} seeds in one stack)" if seeds > 1 else ""
        runs = f"{len(self._plan)} run{'s' if len(self._plan) > 1 else ''}"
        self.say(f"{runs}{before}{together}, into {escape(str(where))}")

    def begin(self, job: Job, round: int) -> None:
        """A run starts, or goes on at ``round``."""
        self._rounds_of[job.key] = round
        if self._all is None:
            # Created late: the estimate of the time left starts with the first run, not with loading data.
            self._all = self._bars.add_task("all", total=len(self._plan) * self._rounds, position="", standing="")
        self._tasks[job.key] = self._bars.add_task(
            self._name(job), total=self._rounds, completed=round, position=self._position(round), standing=""
        )
        self._count()

    def advance(self, job: Job, round: int, standing: Standing | None) -> None:
        """A round is over."""
        self._rounds_of[job.key] = round
        task = self._tasks[job.key]
        self._bars.update(task, completed=round, position=self._position(round))
        if standing is not None:
            self._bars.update(task, standing=str(standing))
        self._count()

    def _count(self) -> None:
        """Bring the bar of all runs up to date."""
        if self._all is not None:
            completed = self._done * self._rounds + sum(self._rounds_of.values())
            number = min(self._done + len(self._rounds_of), len(self._plan))
            self._bars.update(self._all, completed=completed, position=f"run {number}/{len(self._plan)}")

    def _position(self, round: int) -> str:
        return f"round {round:>{len(str(self._rounds))}}/{self._rounds}"

    def _name(self, job: Job) -> str:
        """Label and seed, as wide for every job so that nothing jumps."""
        return escape(f"{job.system.label:<{self._wide}}  seed {job.seed:<{self._seed_wide}}")

    def warn(self, text: str) -> None:
        """A line that stays and catches the eye; where nothing is shown, it goes to the log."""
        if self._console.quiet:
            logger.warning(text)
        self.say(f"[yellow]warning[/] {escape(text)}")

    def finish(self, job: Job, standing: Standing | None, seconds: float, failed: int) -> None:
        """A run is over: a line that stays, with the result at the reported round."""
        self._bars.refresh()  # a run that is over before the next painting was there all the same
        self._bars.remove_task(self._tasks.pop(job.key))
        self._rounds_of[job.key] = self._rounds
        self._count()
        result = "" if standing is None else f"{standing!s:<30}  round {standing.round:<5}"
        clients = f"  [yellow]{failed} client{'s' if failed > 1 else ''} failed[/]" if failed else ""
        self.say(f"[green]done[/] {self._name(job)}  {result} {seconds:7.1f} s{clients}")
