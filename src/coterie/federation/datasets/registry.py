"""The list of sources: each is one function in one file, entered by a decorator."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from coterie.errors import CoterieError
from coterie.federation.examples import Examples

Loader = TypeVar("Loader", bound=Callable[..., Examples])


class Options(BaseModel):
    """Base of the options of a source: each field, with its description, is a key of the section ``federation:``.

    Data of the user's ``own`` come with their clients, so that the section needs no partition, and maybe with a split.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    own: ClassVar[bool] = False


@dataclass(frozen=True)
class Source:
    """A source by name.

    Attributes:
        name: name in the configuration.
        description: one line for ``coterie datasets``.
        files: which files it reads, below the data directory; empty where it needs none.
        loader: reads it, given the data directory (``None``: the default one), a seed and, where it has options, these.
        options: its options; ``None`` where it has none.
    """

    name: str
    description: str
    files: str
    loader: Callable[..., Examples]
    options: type[Options] | None = None

    @property
    def module(self) -> str:
        """The module whose import registers it."""
        return self.loader.__module__

    @property
    def option_cards(self) -> list[dict[str, Any]]:
        """Name, default, choices and meaning of every option, as plain data; without a default one is ``required``."""
        fields = {} if self.options is None else self.options.model_fields
        return [
            {
                "name": name,
                "required": field.is_required(),
                "default": None if field.is_required() else field.get_default(call_default_factory=True),
                "choices": list(get_args(field.annotation)) if get_origin(field.annotation) is Literal else [],
                "meaning": field.description or "",
            }
            for name, field in fields.items()
        ]

    def load(self, data_dir: Path | None, seed: int = 0, options: Options | None = None) -> Examples:
        """Read its files or, where it is generated, draw it from the seed; options left out have their defaults.

        Raises:
            CoterieError: missing or damaged files, or more examples than memory holds.
        """
        chosen = [] if self.options is None else [self.options() if options is None else options]
        try:
            return self.loader(data_dir, seed, *chosen)
        except MemoryError as error:
            raise CoterieError(
                f"The examples of {self.name!r} do not fit in memory ({error}): ask for fewer."
            ) from error


SOURCES: dict[str, Source] = {}


def register_source(
    name: str, description: str, files: str = "", *, options: type[Options] | None = None
) -> Callable[[Loader], Loader]:
    """Enter the decorated loader, a function of the data directory and, where there are such, of options."""

    def enter(load: Loader) -> Loader:
        @wraps(load)
        def loader(data_dir: Path | None, seed: int, *chosen: Options) -> Examples:
            return load(data_dir, *chosen)

        _enter(Source(name, description, files, loader, options))
        return load

    return enter


def register_generator(
    name: str, description: str, *, options: type[Options] | None = None
) -> Callable[[Loader], Loader]:
    """Enter the decorated function of a seed and, where there are such, of options; it needs no files."""

    def enter(draw: Loader) -> Loader:
        @wraps(draw)
        def loader(data_dir: Path | None, seed: int, *chosen: Options) -> Examples:
            return draw(seed, *chosen)

        _enter(Source(name, description, "", loader, options))
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
