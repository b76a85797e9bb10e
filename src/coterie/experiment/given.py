"""A federation that is given in Python instead of being built from a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.errors import CoterieError
from coterie.federation import Federation, FederationConfig
from coterie.federation.datasets.memory import IN_MEMORY
from coterie.federation.federation import FACTS
from coterie.federation.table_options import SPLIT_BY


def section_of(federation: Federation) -> dict[str, Any]:
    """The section ``federation:`` that stands for it: its checksum, and by which columns a data frame was split."""
    rules = {key: federation.source[key] for key in SPLIT_BY if key in federation.source}
    return {"source": IN_MEMORY, "sha256": federation.digest, **rules}


def recognised(federation: Federation, section: FederationConfig) -> Federation:
    """The checked federation, which says that it was given.

    Raises
    ------
    CoterieError
        It is not that of the section, or its values cannot be used.
    """
    if section.source != IN_MEMORY:
        raise CoterieError(
            f"A federation was given, but federation.source is {section.source!r}: leave one of them out."
        )
    stated, found = section_of(federation), section.model_dump()
    if found["sha256"] not in (None, stated["sha256"]):
        raise CoterieError(
            "The federation that was given is not the one that this run began with, for its checksum "
            "(federation.sha256) is another: give the same clients with the same examples."
        )
    kept = {key: federation.source[key] for key in (*FACTS, "clients") if key in federation.source}
    return replace(federation, source={**stated, **kept}).validate()
