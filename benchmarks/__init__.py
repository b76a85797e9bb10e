"""Programs that measure; each is described in README.md."""
