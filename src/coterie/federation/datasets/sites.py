"""No examples: they are at the sites of a real federation, each of which says in its own file where."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from coterie.errors import CoterieError
from coterie.federation.datasets.registry import register_source

AT_SITES = "sites"
"""The name of this source."""


@register_source(
    AT_SITES, "the data are at real sites, see coterie deploy; no partition", "none: each site's own file says where"
)
def sites(data_dir: Path | None) -> NoReturn:
    """Refuse: nothing can be read here."""
    raise CoterieError(
        "federation.source: sites says that the data are at real sites, so nothing can be read or simulated here: "
        "coterie deploy init writes what the server and the sites run."
    )
