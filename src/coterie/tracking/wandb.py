"""Weights & Biases: off-line a folder for each run, which ``wandb sync`` uploads when it is told to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from coterie.errors import CoterieError
from coterie.tracking.subject import Outcome, Subject

QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
"""No reports to W&B's makers, and no lines of theirs among ours; what the user has set is left."""


def library() -> Any:
    """The package wandb; ``CoterieError`` where it is not installed."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    try:
        import wandb
    except ImportError as error:
        raise CoterieError("tracking.wandb needs Weights & Biases: pip install 'coterie[wandb]'.") from error
    return wandb


class Wandb:
    """Logs to ``folder/wandb``, and with ``mode`` ``online`` to W&B's server too."""

    name = "Weights & Biases"

    def __init__(self, folder: Path, project: str, entity: str | None, mode: Literal["offline", "online"]) -> None:
        self._folder, self._project, self._entity, self._mode = folder, project, entity, mode

    def begin(self, subject: Subject) -> _Run:
        """See `Sink`; off-line, the folder of an earlier sitting is replaced, since all of it comes again."""
        wandb = library()
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._mode == "offline":
            for earlier in (self._folder / "wandb").glob(f"offline-run-*-{subject.identity}"):
                shutil.rmtree(earlier)
        settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
        run = wandb.init(
            dir=str(self._folder),
            project=self._project,
            entity=self._entity,
            mode=self._mode,
            id=subject.identity,
            name=subject.name,
            group=subject.group,
            config=dict(subject.parameters),
            resume="allow" if self._mode == "online" else None,
            reinit="create_new",
            settings=settings,
        )
        return _Run(run)


class _Run:
    """One run; W&B's steps go upwards only, so a round that the server has already is not sent again."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, round: int, values: Mapping[str, float]) -> None:
        if round >= self._run.step:
            self._run.log(dict(values), step=round)

    def end(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=0 if outcome == "finished" else 1)
