"""The published tables, one command each.

    python -m benchmarks.reproduce list                          # what there is, and how many cells are finished
    python -m benchmarks.reproduce run fedora-1-mnist            # run what is missing; Ctrl-C and run it again to go on
    python -m benchmarks.reproduce run fedora-gtsrb --seeds 0 --system ifca --device cuda
    python -m benchmarks.reproduce collect fedora-1-mnist RUN    # take finished cells out of a run directory
    python -m benchmarks.reproduce table                         # all tables in Markdown, published beside ours
    python -m benchmarks.reproduce write docs/results.md         # the same into a document, between its marks
    python -m benchmarks.reproduce as-run fedora-1-mnist OUT     # a run directory: coterie compare OUT

A cell is one system with one seed. A finished one is a line of ``results/TABLE.jsonl`` with the hash of its settings,
its command and its seconds, and is not run again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.reproduce.cells import table_named, tables
from benchmarks.reproduce.filled import as_run
from benchmarks.reproduce.rows import load
from benchmarks.reproduce.running import collect, reproduce
from benchmarks.reproduce.told import markdown, written
from coterie.errors import CoterieError, Interrupted


def main() -> int:
    """Do what the command line says."""
    options = _options()
    console = Console(highlight=False, soft_wrap=True)
    try:
        _do(options, console)
    except Interrupted as error:
        console.print(str(error))
        return 130
    except CoterieError as error:
        console.print(f"Error: {error}")
        return 1
    return 0


def _do(options: argparse.Namespace, console: Console) -> None:
    if options.command == "list":
        for table in tables().values():
            cells, there = table.cells, load(table)
            console.print(f"{table.name:24} {len(there):3} of {len(cells):3} cells  {table.title}")
    elif options.command == "run":
        for name in options.table:
            reproduce(
                table_named(name),
                options.folder,
                console,
                workers=options.workers,
                seeds=options.seeds,
                labels=options.system,
                device=options.device,
                data_dir=options.data_dir,
            )
    elif options.command == "collect":
        console.print(f"{collect(table_named(options.table), options.run)} new cells")
    elif options.command == "as-run":
        console.print(f"coterie compare {as_run(table_named(options.table), options.output).path}")
        console.print("The rows hold no traffic: bytes are told as 0.")
    elif options.command == "write":
        text = options.document.read_text(encoding="utf-8")
        options.document.write_text(written(text, tables()), encoding="utf-8")
    else:
        for name in options.table or tables():
            print("\n".join(markdown(table_named(name))), end="\n\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is, and how many cells are finished")
    run = commands.add_parser("run", help="run the cells that are missing")
    run.add_argument("table", nargs="+")
    run.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], help="default: the table's")
    run.add_argument("--system", action="append", metavar="LABEL", help="one of the table; default: all; repeatable")
    run.add_argument("--folder", type=Path, default=Path("runs/reproduce"), help="default: %(default)s")
    run.add_argument("--workers", type=int, help="cores to use")
    run.add_argument("--device", help="cpu, cuda or auto")
    run.add_argument("--data-dir", type=Path, help="where data files lie")
    take = commands.add_parser("collect", help="take finished cells out of a run directory")
    take.add_argument("table")
    take.add_argument("run", type=Path)
    told = commands.add_parser("table", help="Markdown, published beside ours")
    told.add_argument("table", nargs="*")
    document = commands.add_parser("write", help="put the tables into a document, between its marks")
    document.add_argument("document", type=Path)
    whole = commands.add_parser("as-run", help="a run directory of the finished cells")
    whole.add_argument("table")
    whole.add_argument("output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
