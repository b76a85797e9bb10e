"""One experiment: a federation times algorithms times seeds, into a run directory."""

from coterie.errors import Interrupted
from coterie.experiment.adapting import Adapted, adapt
from coterie.experiment.experiment import Experiment
from coterie.experiment.result import Result
from coterie.experiment.runner import read_config, resume, resume_command, run

__all__ = [
    "Adapted", "Experiment", "Interrupted", "Result", "adapt", "read_config", "resume", "resume_command", "run",
]  # fmt: skip
