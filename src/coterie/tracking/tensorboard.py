"""TensorBoard: one folder of event files for each run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.tracking.subject import Outcome, Subject


def library() -> Any:
    """The module ``torch.utils.tensorboard``; ``CoterieError`` where TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard as library
    except ImportError as error:
        raise CoterieError("tracking.tensorboard needs TensorBoard: pip install 'coterie[tensorboard]'.") from error
    return library


class TensorBoard:
    """Writes event files below ``folder``."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, subject: Subject) -> _Events:
        """See `Sink`."""
        return _Events(self._folder / subject.folder, subject)


class _Events:
    """The event files of one run; those of an earlier sitting go, since all that they hold comes again."""

    def __init__(self, folder: Path, subject: Subject) -> None:
        tensorboard = library()
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()  # TensorBoard's own way, purge_step, leaves numbers of double precision there twice
        self._writer = tensorboard.SummaryWriter(str(folder))
        # the summary of the whole experiment is left out: TensorBoard then finds the parameters of all runs
        _, start, self._end = tensorboard.summary.hparams(dict(subject.parameters), {})
        self._writer.file_writer.add_summary(start)
        self._writer.flush()

    def log(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round, new_style=True, double_precision=True)
        self._writer.flush()

    def end(self, outcome: Outcome) -> None:
        if outcome == "finished":
            self._writer.file_writer.add_summary(self._end)
        self._writer.close()
