"""Text files of a deployment, with ``@{name}`` where a value is put in."""
