"""Errors that a user can mend: one clear sentence that says what, where and what to do."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


class CoterieError(Exception):
    """A mistake in the input. The command line prints its message and exits with code 2, without a traceback."""


class SitesLost(CoterieError):
    """Clients are gone with all that they knew, or cannot keep it; the run goes on from its last checkpoint."""


class CoterieWarning(UserWarning):
    """Something worth knowing that does not stop the run."""


class Interrupted(KeyboardInterrupt):
    """The experiment was stopped and saved; ``resume`` continues it as if nothing had happened.

    Parameters
    ----------
    path : Path
        The run directory.
    number : int
        The signal that asked for the stop.
    command : tuple of str
        The words after ``coterie`` and before the path that continue it.
    """

    def __init__(self, path: Path, number: int, command: tuple[str, ...] = ("resume",)) -> None:
        super().__init__(f"stopped and saved in {path}")
        self.path, self.number, self.command = path, number, command

    @property
    def exit_code(self) -> int:
        """What a shell expects: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number


def describe(error: BaseException) -> str:
    """An error of somebody else's code in one line: its message, and its kind where that says more."""
    if isinstance(error, SystemExit):
        return "it called sys.exit"
    text = " ".join(str(error).split())
    plain = bool(text) and isinstance(error, ImportError | TypeError | ValueError)
    return text if plain else f"{type(error).__name__}: {text}"


def find_attribute(name: str, where: str, form: str) -> Any:
    """What ``module:attribute`` names.

    Raises
    ------
    CoterieError
        The module cannot be imported, whatever its code raises, or has no such attribute; the message names ``where``
        the name stands and the ``form`` that is expected.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise CoterieError(
            f"{where} '{name}' cannot be imported ({describe(error)}); give an importable {form}"
        ) from error
