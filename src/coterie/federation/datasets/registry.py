"""The list of sources: each is one function in one file, entered by a decorator."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import CoterieError
from coterie.federation.examples import Examples

Loader = Callable[[Path | None], Examples]


@dataclass(frozen=True)
class Source:
    """A source by name.

    Attributes:
        name: name in the configuration.
        description: one line for ``coterie datasets``.
        load: reads it, given the data directory (``None``: the default one).
    """

    name: str
    description: str
    load: Loader


SOURCES: dict[str, Source] = {}


def register_source(name: str, description: str) -> Callable[[Loader], Loader]:
    """Enter the decorated loader under ``name``."""

    def enter(load: Loader) -> Loader:
        if name in SOURCES:
            raise ValueError(f"source {name!r} is registered twice")
        SOURCES[name] = Source(name, description, load)
        return load

    return enter


def find_source(name: str) -> Source:
    """The source of that name.

    Raises:
        CoterieError: no such source; the message names the nearest and all that exist.
    """
    if name in SOURCES:
        return SOURCES[name]
    near = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise CoterieError(f"Unknown source {name!r}.{hint} Available: {', '.join(sorted(SOURCES))}.")


def available_sources() -> dict[str, str]:
    """Name and one-line description of every source."""
    return {name: SOURCES[name].description for name in sorted(SOURCES)}
