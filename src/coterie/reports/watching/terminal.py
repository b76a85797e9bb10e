"""The live view in a terminal of 80 columns: one line a system, however many seeds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coterie.evaluation import metric_of, title_of
from coterie.reports.watching.snapshot import Curve, Failed, Line, Snapshot, State
from coterie.reports.watching.watcher import Watcher
from coterie.reports.words import counted, duration, listed

SECONDS = 1.0
"""Between two looks."""

BLOCKS, NOT_YET = "▁▂▃▄▅▆▇█", "·"
WIDTH = 10
"""Characters of a curve, from round 0 to the last."""

AROUND, AT_LEAST = 14, 3
"""Lines of the screen that are not systems, and systems that are shown on the smallest."""

MOST_FAILURES = 4
UNKNOWN = "–"
COLOURS: dict[State, str] = {"failed": "red", "running": "cyan", "waiting": "dim", "finished": "green"}


def follow(console: Console, watcher: Watcher, *, keep: bool = False) -> None:
    """Show how a run stands until it is over; with ``keep``, until somebody presses Ctrl-C."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            seen = watcher.look()
            live.update(view(seen, height=console.height), refresh=True)
            if seen.condition == "finished" and not keep:
                return
            time.sleep(SECONDS)


def print_views(console: Console, watcher: Watcher) -> None:
    """Print how a run stands whenever a round was added, until it is over or nobody reads any more."""
    told: object = None
    while not console.quiet:
        seen = watcher.look()
        news = seen.condition, seen.guard, seen.lines
        if news != told:
            console.print(view(seen), "")
            told = news
        if seen.condition == "finished":
            return
        time.sleep(SECONDS)


def view(seen: Snapshot, *, height: int | None = None) -> RenderableType:
    """A snapshot as lines for a terminal; of many systems those that fit into ``height`` lines."""
    parts: list[RenderableType] = [_heading(seen)]
    if seen.lines:
        room = len(seen.lines) if height is None else max(AT_LEAST, height - AROUND - len(seen.notes))
        shown = _chosen(seen.lines, room)
        parts += [Text(""), _table(seen, shown)]
        hidden = [line for line in seen.lines if line not in shown]
        if hidden:
            over = sum(line.state == "finished" for line in hidden)
            parts.append(Text(f"and {counted(len(hidden), 'system')} more, {over} of them finished", "dim"))
    if seen.failures:
        parts += [Text(""), *map(_failure, seen.failures[:MOST_FAILURES])]
        if len(seen.failures) > MOST_FAILURES:
            parts.append(Text(f"and {len(seen.failures) - MOST_FAILURES} more failures in failures.csv", "dim"))
    parts += [Text(_clean(note), "yellow") for note in seen.notes]
    return Group(*parts)


def sparkline(curve: Curve, rounds: int, low: float, high: float, width: int = WIDTH) -> str:
    """A curve in ``width`` characters from round 0 to ``rounds``; what has not come yet is dots.

    Each character is the last result of its rounds, or of those before, between ``low`` and ``high``.
    """
    known = [(round, value) for round, value in zip(curve.round, curve.mean, strict=True) if value is not None]
    if not known:
        return NOT_YET * width
    line = ""
    for place in range(width):
        until = rounds * (place + 1) / width
        before = [value for round, value in known if round <= until]
        if known[-1][0] <= rounds * place / width and place > 0:
            line += NOT_YET
        else:
            value = before[-1] if before else known[0][1]
            share = (value - low) / (high - low) if high > low else 1.0
            line += BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]
    return line


def _heading(seen: Snapshot) -> Text:
    """What is watched, how it stands, and how fresh this is."""
    left = f" About {duration(seen.seconds_left)} left." if seen.seconds_left and seen.condition == "running" else ""
    style = {"stale": "yellow", "finished": "green"}.get(seen.condition, "")
    return Text.assemble(
        (_clean(seen.name), "bold"),
        "  ",
        (f"{_clean(seen.sentence)}{left}", style),
        "\n",
        (f"{seen.directory}, last written {duration(seen.age)} ago", "dim"),
    )


def _chosen(lines: Sequence[Line], room: int) -> list[Line]:
    """The lines most worth seeing, in their order: what goes on or failed, LOCAL, what is over, then the rest."""
    if len(lines) <= room:
        return list(lines)
    rank: dict[State, int] = {"running": 0, "failed": 0, "finished": 2, "waiting": 3}
    first = sorted(range(len(lines)), key=lambda place: rank[lines[place].state] if place else 1)[:room]
    return [lines[place] for place in sorted(first)]


def _table(seen: Snapshot, lines: Sequence[Line]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("System", min_width=10)  # the only one that gives way where the terminal is narrow
    in_points = metric_of(seen.metric).is_share
    points = "\n(points)" if in_points else ""
    rest = ("Over", "Round", title_of(seen.metric), f"Gain{points}", "Pace", "Left")
    for heading in rest:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Curve", no_wrap=True)
    values = [value for line in seen.lines for value in line.curve.mean if value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    number, signed = ("{:.3f}", "{:+.1f}") if in_points else ("{:.4g}", "{:+.3g}")
    for line in lines:
        table.add_row(
            Text(_clean(line.label), COLOURS[line.state], no_wrap=True, overflow="ellipsis"),
            f"{line.over}/{len(line.runs)}",
            f"{line.round}/{seen.rounds}",
            _shown(line.value, number),
            _shown(line.gain, signed),
            UNKNOWN if line.seconds_per_round is None else _pace(line.seconds_per_round),
            UNKNOWN if line.seconds_left is None else duration(line.seconds_left),
            sparkline(line.curve, seen.rounds, low, high),
        )
    return table


def _failure(failed: Failed) -> Text:
    """Who failed, where and why, in one line."""
    times = f", {failed.times} times" if failed.times > 1 else ""
    where = f"{failed.label} seed {failed.seed}, round {failed.round}{times}"
    text = _clean(f"{listed(failed.clients)} failed ({where}): {failed.reason}")
    return Text(text, "yellow", no_wrap=True, overflow="ellipsis")


def _shown(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)


def _pace(seconds: float) -> str:
    """Seconds a round."""
    return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 99.95 else duration(seconds)


def _clean(text: str) -> str:
    """A text without what would steer a terminal: names and reasons come from others."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
