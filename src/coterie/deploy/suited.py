"""Whether an experiment can be run by real sites."""

from __future__ import annotations

from coterie.config import Config
from coterie.errors import CoterieError


def check_suited(config: Config) -> None:
    """Refuse what is for simulations alone.

    Raises
    ------
    CoterieError
        The experiment holds out clients, or adds noise in the place of the sites.
    """
    if config.newcomers is not None and config.newcomers.clients is not None:
        raise CoterieError("newcomers.clients holds out clients, which is for simulations: remove it")
    if config.privacy is not None:
        raise CoterieError("privacy is each site's own affair: remove it, and let the sites set policy in site.yaml")
