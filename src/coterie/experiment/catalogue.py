"""The registered methods as plain data, for listings."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from typing import Any

from coterie.contract import Algorithm, algorithm_class, available_algorithms


def algorithm_cards(name: str | None = None) -> list[dict[str, Any]]:
    """Every registered method, or the one called ``name``: name, title, paper, text, variants and options.

    Raises
    ------
    CoterieError
        There is no method of that name; the message names the nearest.
    """
    if name is not None:
        return [_card(name, algorithm_class(name))]
    return [_card(known, algorithm) for known, algorithm in available_algorithms().items()]


def _card(name: str, algorithm: type[Algorithm]) -> dict[str, Any]:
    about = inspect.getdoc(algorithm) or ""
    return {
        "name": name,
        "title": algorithm.title or about.split("\n", 1)[0],
        "paper": algorithm.paper,
        "about": about,
        "evaluated": algorithm.evaluated,
        "variants": list(algorithm.variants),
        "options": [
            {
                "name": field.name.rstrip("_"),
                "type": _readable(str(field.type)),
                "default": None if field.default is MISSING else field.default,
                "variants": {
                    variant: defaults[field.name]
                    for variant, defaults in algorithm.variants.items()
                    if field.name in defaults
                },
            }
            for field in fields(algorithm)
        ],
    }


def _readable(declared: str) -> str:
    """``Literal['cos', 'exp_cos'] | None`` as ``cos | exp_cos | None``."""
    return re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace("'", "").replace(", ", " | "), declared)
