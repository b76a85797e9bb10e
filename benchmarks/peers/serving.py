"""A contestant's side of the pipe: it sets up once, then runs one round each time it is told to.

Every answer is one line of JSON. Whatever else a library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.work import Task, read

_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Unsupported(Exception):
    """This contestant cannot do this work; the reason is printed instead of a time."""


def task() -> Task:
    """The task in the file that the command line names."""
    return read(Path(sys.argv[1]))


def option(name: str, default: str = "") -> str:
    """The value after ``--name`` on the command line."""
    return sys.argv[sys.argv.index(f"--{name}") + 1] if f"--{name}" in sys.argv else default


def serve(
    round: Callable[[], float | None], weights: Callable[[], Mapping[str, Tensor]] | None, given: Task, version: str
) -> None:
    """Answer until the pipe closes: ``round`` (seconds) and ``loss`` (of the averaged model).

    ``round`` may return seconds of its own; else it is timed. ``weights`` gives the averaged model by the network's
    names.
    """
    _answer(ready=True, version=version, torch=torch.__version__, threads=torch.get_num_threads())
    for line in sys.stdin:
        if line.strip() == "round":
            begin = perf_counter()
            own = round()
            _answer(seconds=perf_counter() - begin if own is None else own)
        elif line.strip() == "loss":
            _answer(loss=None if weights is None else given.loss({**given.weights, **weights()}))


def explained(main: Callable[[], None]) -> None:
    """Run a contestant; its failure becomes one sentence for the table."""
    try:
        main()
    except Exception as error:
        sentence = str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"
        _answer(failure=sentence.strip().splitlines()[0][:300])
        raise


def _answer(**values: Any) -> None:
    print(json.dumps(values), file=_ANSWERS, flush=True)
