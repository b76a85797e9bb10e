"""What people look at after a run, and while it goes on; everything is read from the run directory."""

from coterie.reports.opened import OpenedRun, open_run

__all__ = ["OpenedRun", "open_run"]
