"""Where an algorithm runs: implementations of ``ask``."""

from coterie.engines import checkpoint
from coterie.engines.admission import Admission, Admitted
from coterie.engines.base import Diverged, Engine, Failure, RoundReport
from coterie.engines.company import Alone, Company
from coterie.engines.settings import Participation, Report, Settings
from coterie.engines.shared import Member, Shared
from coterie.engines.simulation import Simulation
from coterie.engines.trained import Trained
from coterie.errors import SitesLost
from coterie.training import Schedule, TrainingSettings

__all__ = [
    "Admission", "Admitted", "Alone", "Company", "Diverged", "Engine", "Failure", "Member", "Participation", "Report",
    "RoundReport", "Schedule", "Settings", "Shared", "Simulation", "SitesLost", "Trained", "TrainingSettings",
    "checkpoint",
]  # fmt: skip
