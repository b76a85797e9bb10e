"""A run while it goes on: what its directory says now, in the terminal or as a page of this machine."""

from coterie.reports.watching.page import serving
from coterie.reports.watching.snapshot import Snapshot, snapshot
from coterie.reports.watching.terminal import follow, print_views, view
from coterie.reports.watching.watcher import Watcher

__all__ = ["Snapshot", "Watcher", "follow", "print_views", "serving", "snapshot", "view"]
