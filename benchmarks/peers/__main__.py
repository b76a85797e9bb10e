"""Times one federated round of Coterie and of its peers, in turns.

python -m benchmarks.peers                            # everything that is installed, all pieces of work
python -m benchmarks.peers install                    # the peers, each into an environment of its own
python -m benchmarks.peers --only mlp-10,cnn-10 --contestants coterie,loop --repeats 9
python -m benchmarks.peers --pfllib ~/PFLlib --fl-bench ~/FL-bench
python -m benchmarks.peers table --json scores.json   # what --json has stored, in Markdown
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.peers.contestants import CONTESTANTS, FLOOR, RECIPES, checkouts, install
from benchmarks.peers.match import play
from benchmarks.peers.tables import markdown, save, show
from benchmarks.peers.work import WORKS, read, write

ENVIRONMENTS = Path.home() / ".cache" / "coterie-peers"


def chosen(names: str | None, known: dict[str, object], what: str) -> list[str]:
    """The known ones among comma-separated names, all by default."""
    asked = [name.strip() for name in names.split(",")] if names else list(known)
    for name in asked:
        if name not in known:
            sys.exit(f"there is no {what} {name!r}; choose from: {', '.join(known)}")
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["run", "install", "table"], default="run")
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
    parser.add_argument("--json", type=Path, help="also put all figures into this file")
    arguments = parser.parse_args()
    if arguments.action == "install":
        names = arguments.peers or list(RECIPES)[:3]
        sys.exit(0 if install(chosen(",".join(names), dict(RECIPES), "peer"), arguments.into) else 1)
    if arguments.action == "table":
        sys.exit(print(markdown(arguments.json)) if arguments.json else "name the file: --json FILE")
    everyone = {one.name: one for one in (*CONTESTANTS, *checkouts(arguments.pfllib, arguments.fl_bench))}
    contestants = [everyone[name] for name in chosen(arguments.contestants, dict(everyone), "contestant")]
    changes = {key: value for key in ("clients", "examples") if (value := getattr(arguments, key)) is not None}
    console = Console()
    for name in chosen(arguments.only, dict(WORKS), "work"):
        work = replace(WORKS[name], **changes)
        with tempfile.TemporaryDirectory(prefix="coterie-peers-") as folder:
            file = Path(folder) / "task.npz"
            write(work, file)
            given = read(file)
            start = given.loss(given.weights)
            scores = play([*contestants, FLOOR], file, arguments.into, arguments.repeats, arguments.timeout)
        show(console, work, scores, start)
        if arguments.json:
            save(arguments.json, work, scores)


if __name__ == "__main__":
    main()
