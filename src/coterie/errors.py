"""Errors that a user can mend: one clear sentence that says what, where and what to do."""


class CoterieError(Exception):
    """A mistake in the input. The command line prints its message and exits with code 2, without a traceback."""


class CoterieWarning(UserWarning):
    """Something worth knowing that does not stop the run."""
