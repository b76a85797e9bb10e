"""Search for hyper-parameters by validation data alone."""

from coterie.tuning.result import Tuned
from coterie.tuning.tuner import resume_tuning, tune

__all__ = ["Tuned", "resume_tuning", "tune"]
