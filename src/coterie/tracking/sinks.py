"""Which trackers a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from coterie.config import TrackingConfig
from coterie.tracking import mlflow, tensorboard, wandb
from coterie.tracking.subject import Sink


def check_libraries(config: TrackingConfig) -> None:
    """Find out before anything is trained whether the trackers are installed.

    Raises
    ------
    CoterieError
        One is not; the sentence names the extra that brings it.
    """
    if config.tensorboard:
        tensorboard.library()
    if config.mlflow is not None:
        mlflow.library(local=config.mlflow.uri is None)
    if config.wandb is not None:
        wandb.library()


def make_sinks(config: TrackingConfig, name: str, folder: Path) -> list[Sink]:
    """The trackers of the experiment ``name``; what is theirs on this machine lies in ``folder``."""
    sinks: list[Sink] = []
    if config.tensorboard:
        sinks.append(tensorboard.TensorBoard(folder / "tensorboard"))
    if config.mlflow is not None:
        sinks.append(mlflow.Mlflow(folder / "mlflow", config.mlflow.experiment or name, config.mlflow.uri))
    if config.wandb is not None:
        section = config.wandb
        sinks.append(wandb.Wandb(folder, section.project or name, section.entity, section.mode))
    return sinks
