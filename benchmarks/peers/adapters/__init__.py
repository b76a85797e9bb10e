"""One file a contestant, run in that contestant's environment; besides it, torch and numpy are imported only."""
