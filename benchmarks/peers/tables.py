"""Scores as a table in the terminal, as a file, and as a table in Markdown."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.peers.contestants import FLOOR
from benchmarks.peers.match import Score
from benchmarks.peers.work import Work

CLOSE = 0.2  # of the loop's fall in loss: models of other orders of the batches lie closer, those of other work do not


def show(console: Console, work: Work, scores: list[Score], start: float) -> None:
    """One row a contestant, and a line for each without a time; ``start`` is the loss of the first weights."""
    found = {score.name: score for score in scores}
    ours, floor = (found[name].median if name in found else None for name in ("coterie", FLOOR.name))
    loop = found["loop"].loss if "loop" in found else None
    table = Table(title=escape(str(work)), title_justify="left")
    table.add_column("contestant")
    for column in ("s", "CPU s", "x coterie", "x floor", "peak MB", "loss"):
        table.add_column(column, justify="right")
    for score in scores:
        if score.median is None:
            continue
        off = loop is not None and score.loss is not None and abs(score.loss - loop) > CLOSE * abs(start - loop)
        trained = score.name != FLOOR.name
        table.add_row(
            score.name,
            f"{score.median:.3f}",
            f"{score.cpu:.3f}" if trained else "",
            f"{score.median / ours:.2f}" if ours else "",
            f"{score.median / floor:.1f}" if floor else "",
            f"{score.peak:,.0f}" if trained else "",
            "" if score.loss is None else f"{score.loss:.4f}{' (!)' if off else ''}",
        )
    console.print(table)
    for score in scores:
        if score.failure:
            console.print(f"  {score.name}: {score.failure}", markup=False, highlight=False)
    console.print()


def save(file: Path, work: Work, scores: list[Score]) -> None:
    """Put one work's scores into a file, in place of its earlier ones and beside those of other works."""
    kept = json.loads(file.read_text()) if file.exists() else {"works": {}}
    kept["machine"] = {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
    kept["works"][work.name] = {
        "work": asdict(work),
        "flops": work.flops,
        "scores": {score.name: {**asdict(score), "median": score.median} for score in scores},
    }
    file.write_text(json.dumps(kept, indent=1) + "\n")


def markdown(file: Path) -> str:
    """Seconds of a round of each contestant at each work, and in brackets how many times Coterie's that is."""
    works = json.loads(file.read_text())["works"]
    names = list(dict.fromkeys(name for work in works.values() for name in work["scores"]))
    lines = [f"| | {' | '.join(works)} |", f"|---|{'---|' * len(works)}"]
    for name in names:
        cells = []
        for work in works.values():
            seconds, ours = (work["scores"].get(one, {}).get("median") for one in (name, "coterie"))
            ratio = f" ({seconds / ours:.2f})" if seconds and ours and name != "coterie" else ""
            cells.append(f"{seconds:.3f}{ratio}" if seconds else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
