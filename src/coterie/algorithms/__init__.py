"""One file per method, and nothing else."""
