"""The list of sources: each is one function in one file, entered by a decorator."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import CoterieError
from coterie.federation.examples import Examples

Loader = Callable[[Path | None], Examples]
Generator = Callable[[int], Examples]


@dataclass(frozen=True)
class Source:
    """A source by name.

    Attributes:
        name: name in the configuration.
        description: one line for ``coterie datasets``.
        files: which files it reads, below the data directory; empty where it needs none.
        loader: reads it, given the data directory (``None``: the default one) and a seed.
    """

    name: str
    description: str
    files: str
    loader: Callable[[Path | None, int], Examples]

    def load(self, data_dir: Path | None, seed: int = 0) -> Examples:
        """Read its files or, where it is generated, draw it from the seed.

        Raises:
            CoterieError: missing or damaged files.
        """
        return self.loader(data_dir, seed)


SOURCES: dict[str, Source] = {}


def register_source(name: str, description: str, files: str = "") -> Callable[[Loader], Loader]:
    """Enter the decorated loader, a function of the data directory, under ``name``."""

    def enter(load: Loader) -> Loader:
        _enter(Source(name, description, files, lambda data_dir, seed: load(data_dir)))
        return load

    return enter


def register_generator(name: str, description: str) -> Callable[[Generator], Generator]:
    """Enter the decorated function of a seed, which needs no files, under ``name``."""

    def enter(draw: Generator) -> Generator:
        _enter(Source(name, description, "", lambda data_dir, seed: draw(seed)))
        return draw

    return enter


def _enter(source: Source) -> None:
    if source.name in SOURCES:
        raise ValueError(f"source {source.name!r} is registered twice")
    SOURCES[source.name] = source


def find_source(name: str) -> Source:
    """The source of that name.

    Raises:
        CoterieError: no such source; the message names the nearest or, where none is near, all that exist.
    """
    if name in SOURCES:
        return SOURCES[name]
    near = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f"Did you mean {near[0]!r}? All: coterie datasets." if near else f"Available: {', '.join(sorted(SOURCES))}."
    raise CoterieError(f"Unknown source {name!r}. {hint}")


def available_sources() -> dict[str, str]:
    """Name and one-line description of every source."""
    return {name: SOURCES[name].description for name in sorted(SOURCES)}
