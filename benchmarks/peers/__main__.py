"""Times one federated round of Coterie and of its peers, in turns.

python -m benchmarks.peers                            # everything that is installed, all pieces of work
python -m benchmarks.peers install                    # the peers, each into an environment of its own
python -m benchmarks.peers --only mlp-10,cnn-10 --contestants coterie,loop --repeats 9
python -m benchmarks.peers --pfllib ~/PFLlib --fl-bench ~/FL-bench
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.peers.contestants import CONTESTANTS, FLOOR, RECIPES, checkouts, install
from benchmarks.peers.match import Score, play
from benchmarks.peers.work import WORKS, Work, read, write

ENVIRONMENTS = Path.home() / ".cache" / "coterie-peers"
CLOSE = 0.2  # of the loop's fall in loss: models of other orders of the batches lie closer, those of other work do not


def table(work: Work, scores: list[Score], start: float) -> Table:
    """One row a contestant."""
    found = {score.name: score for score in scores}
    ours, floor = (found[name].median if name in found else None for name in ("coterie", FLOOR.name))
    loop = found["loop"].loss if "loop" in found else None
    drawn = Table(title=escape(str(work)), title_justify="left")
    drawn.add_column("contestant")
    for column in ("s", "CPU s", "x coterie", "x floor", "peak MB", "loss"):
        drawn.add_column(column, justify="right")
    for score in scores:
        if score.median is None:
            continue
        off = loop is not None and score.loss is not None and abs(score.loss - loop) > CLOSE * abs(start - loop)
        is_floor = score.name == FLOOR.name
        drawn.add_row(
            score.name,
            f"{score.median:.3f}",
            "" if is_floor else f"{score.cpu:.3f}",
            f"{score.median / ours:.2f}" if ours else "",
            f"{score.median / floor:.1f}" if floor else "",
            "" if is_floor else f"{score.peak:,.0f}",
            "" if score.loss is None else f"{score.loss:.4f}{' (!)' if off else ''}",
        )
    return drawn


def report(console: Console, work: Work, scores: list[Score], start: float) -> None:
    """The table, and a line for each contestant without a time."""
    console.print(table(work, scores, start))
    for score in scores:
        if score.failure:
            console.print(f"  {score.name}: {score.failure}", markup=False, highlight=False)
    console.print()


def chosen(names: str | None, known: dict[str, object], what: str) -> list[str]:
    """The known ones among comma-separated names, all by default."""
    asked = [name.strip() for name in names.split(",")] if names else list(known)
    for name in asked:
        if name not in known:
            sys.exit(f"there is no {what} {name!r}; choose from: {', '.join(known)}")
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["run", "install"], default="run")
    parser.add_argument("peers", nargs="*", help=f"what to install: {', '.join(RECIPES)} (default: the first three)")
    parser.add_argument("--into", "--environments", type=Path, default=ENVIRONMENTS, help="folder of the environments")
    parser.add_argument("--only", help=f"pieces of work, with commas: {', '.join(WORKS)}")
    parser.add_argument("--contestants", help=f"with commas: {', '.join(one.name for one in CONTESTANTS)}")
    parser.add_argument("--clients", type=int, help="another number of clients")
    parser.add_argument("--examples", type=int, help="another number of examples a client")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one round, or starting, may take")
    parser.add_argument("--pfllib", type=Path, help="a checkout of PFLlib")
    parser.add_argument("--fl-bench", type=Path, help="a checkout of FL-bench")
    parser.add_argument("--json", type=Path, help="also write all figures into this file")
    arguments = parser.parse_args()
    if arguments.action == "install":
        names = arguments.peers or list(RECIPES)[:3]
        sys.exit(0 if install(chosen(",".join(names), dict(RECIPES), "peer"), arguments.into) else 1)
    everyone = {one.name: one for one in (*CONTESTANTS, *checkouts(arguments.pfllib, arguments.fl_bench))}
    contestants = [everyone[name] for name in chosen(arguments.contestants, dict(everyone), "contestant")]
    changes = {key: value for key in ("clients", "examples") if (value := getattr(arguments, key)) is not None}
    console, results = Console(), []
    for name in chosen(arguments.only, dict(WORKS), "work"):
        work = replace(WORKS[name], **changes)
        with tempfile.TemporaryDirectory(prefix="coterie-peers-") as folder:
            file = Path(folder) / "task.npz"
            write(work, file)
            given = read(file)
            start = given.loss(given.weights)
            scores = play([*contestants, FLOOR], file, arguments.into, arguments.repeats, arguments.timeout)
        report(console, work, scores, start)
        results.append({"work": asdict(work), "flops": work.flops, "scores": [asdict(score) for score in scores]})
        if arguments.json:
            machine = {"processor": platform.processor(), "python": platform.python_version()}
            arguments.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
