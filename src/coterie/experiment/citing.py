"""BibTeX entries of methods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from coterie.config import parse_config
from coterie.contract import Algorithm, algorithm_class
from coterie.errors import CoterieError
from coterie.experiment.catalogue import cited_keys
from coterie.experiment.runner import stored_config
from coterie.runs import RunDirectory


def cite(names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What to cite for methods.

    Parameters
    ----------
    names : sequence of str
        Names of methods, aliases of them, or run directories, which stand for all their methods.

    Returns
    -------
    tuple of dict and list
        BibTeX entries by key, each once; and the methods without a paper.

    Raises
    ------
    CoterieError
        Neither a method nor a run directory; the message names the nearest method.
    """
    entries: dict[str, str] = {}
    without: list[str] = []
    for name in (method for given in names for method in _methods(given)):
        algorithm = algorithm_class(name)
        known = bibliography(algorithm)
        keys = cited_keys(algorithm)
        if not keys and name not in without:
            without.append(name)
        for key in keys:
            if key not in known:
                raise CoterieError(f"algorithm {name} cites {key}, which its references.bib does not hold: add it.")
            entries[key] = known[key]
    return entries, without


def bibliography(algorithm: type[Algorithm]) -> dict[str, str]:
    """The entries of ``references.bib`` beside the method's module, by key; none where there is no such file."""
    package = algorithm.__module__.rpartition(".")[0]
    file = files(package) / "references.bib" if package else None
    if file is None or not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    return {match[1]: match[0] for match in re.finditer(r"(?ms)^@\w+\{([^,]+),.*?^\}$", text)}


def _methods(name: str) -> list[str]:
    """The name itself, or where no method is called so the methods of a run directory."""
    try:
        algorithm_class(name)
    except CoterieError:
        if not Path(name).is_dir():
            raise
    else:
        return [name]
    directory = RunDirectory.open(name)
    config = parse_config(stored_config(directory), where=str(directory.config))
    return [entry.name for entry in config.algorithms]
