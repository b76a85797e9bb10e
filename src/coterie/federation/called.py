"""Calling a function of the user's that gives data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from coterie.errors import CoterieError, describe, find_attribute

Result = TypeVar("Result")


def check_name(value: str) -> str:
    """A name of the form ``module:function``; raises ValueError for another one."""
    module, colon, function = value.partition(":")
    if not (module and colon and function):
        raise ValueError(f"{value!r} is not of the form module:function")
    return value


def call(name: str, seed: int, folder: Path, where: str, read: Callable[[Any], Result]) -> Result:
    """What ``read`` makes of the result of a function, which is called with the seed.

    Args:
        name: ``module:function``; modules in ``folder`` can be imported.
        where: where the name stands, for messages.

    Raises:
        CoterieError: it cannot be imported, or its code or ``read`` fails.
    """
    with _importable(folder):
        function = find_attribute(name, where, "module:function")
        try:
            return read(function(seed))
        except CoterieError:
            raise
        except (Exception, SystemExit) as error:
            raise CoterieError(f"{where} {name} failed: {describe(error)}.") from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
