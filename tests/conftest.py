"""Makes this folder importable, so that tests share ``toys``."""
