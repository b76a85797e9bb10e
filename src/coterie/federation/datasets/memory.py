"""No files: the federation was given in Python, and is told from others by its checksum."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.datasets.registry import Options, register_source

IN_MEMORY = "memory"
"""The name of this source."""


class Memory(Options):
    """Options of the source ``memory``."""

    sha256: str | None = Field(None, description="checksum of the federation, written by coterie.run(federation)")
    group: str | None = Field(None, description="column by which rows of a data frame were kept together")
    time: str | None = Field(None, description="column of the data frame by whose time rows were split")


@register_source(
    IN_MEMORY,
    "the data were given in Python, see coterie.run; no partition",
    "none: they are given in Python",
    options=Memory,
)
def memory(data_dir: Path | None, options: Memory) -> NoReturn:
    """Refuse: nothing can be read here."""
    raise CoterieError(
        "federation.source: memory says that the federation was given in Python, so it is in no file: go on in Python, "
        "coterie.resume(directory, federation=...) or coterie.run(federation)."
    )
