"""What trackers are told of an experiment and its jobs."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from coterie.experiment.plan import Job
from coterie.runs import RunDirectory
from coterie.runs.atomic import write_text
from coterie.runs.directory import make_folder, system_folder
from coterie.tracking import Subject, Tracking, flattened, make_sinks
from coterie.training import TrainingSettings

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment

OTHERS = ("name", "algorithms", "seeds", "output", "tune", "tracking")
"""Keys of the configuration that are not about one job."""


def tracking(experiment: Experiment, directory: RunDirectory, warn: Callable[[str], None]) -> Tracking:
    """The trackers that the configuration asks for; they ``warn`` in one sentence when one of them fails."""
    config = experiment.config
    sinks = [] if config.tracking is None else make_sinks(config.tracking, config.name, directory.tracking)
    return Tracking(sinks, warn)


def subject(experiment: Experiment, job: Job, directory: RunDirectory) -> Subject:
    """A job as trackers see it, with all its settings.

    Raises
    ------
    CoterieError
        The run directory cannot be written.
    """
    folder = f"{system_folder(job.system.algorithm, job.system.variant)}/seed{job.seed}"
    common = {key: value for key, value in experiment.config.as_dict().items() if key not in OTHERS}
    own = {
        "algorithm": {"name": job.system.algorithm, **job.system.method.options()},
        "training": _training(job.system.training),
        "seed": job.seed,
    }
    return Subject(
        identity=hashlib.sha256(f"{_token(directory)} {folder}".encode()).hexdigest()[:16],
        folder=folder,
        name=f"{job.system.label}, seed {job.seed}",
        group=directory.path.name,
        parameters=flattened(common | own),
    )


def _token(directory: RunDirectory) -> str:
    """What tells this run directory from every other one; it is made when it is first asked for."""
    path = make_folder(directory.tracking) / "token"
    if not path.exists():
        write_text(path, f"{secrets.token_hex(8)}\n")
    return path.read_text(encoding="utf-8").strip()


def _training(training: TrainingSettings) -> dict[str, Any]:
    """The section ``training`` of one system, in the words of the configuration."""
    settings = asdict(training)
    del settings["betas"]
    settings["schedule"]["rule"] = settings["schedule"].pop("kind")
    return settings
