"""What people look at after a run, and while it goes on; everything is read from the run directory."""

from coterie.reports.comparing import Comparison, compare
from coterie.reports.opened import OpenedRun, open_run

__all__ = ["Comparison", "OpenedRun", "compare", "open_run"]
