"""One experiment: a federation times algorithms times seeds, into a run directory."""

from coterie.experiment.experiment import Experiment
from coterie.experiment.interrupt import Interrupted
from coterie.experiment.result import Result
from coterie.experiment.runner import read_config, resume, resume_command, run

__all__ = ["Experiment", "Interrupted", "Result", "read_config", "resume", "resume_command", "run"]
