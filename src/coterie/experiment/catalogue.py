"""The registered methods as plain data, for listings."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import MISSING, fields
from typing import Any

from coterie.contract import Algorithm, algorithm_class, available_algorithms
from coterie.contract.options import bounds_of, choices, explained
from coterie.errors import describe


def algorithm_cards(name: str | None = None) -> list[dict[str, Any]]:
    """Every registered method, or the one called ``name``.

    A card holds name, title, idea, paper, cites, text, evaluated model, variants, options, deviations and page; the
    card of one method by name also its measured ``traffic``, a list for each variant (see `measured_traffic`).

    Raises
    ------
    CoterieError
        There is no method of that name; the message names the nearest.
    """
    if name is not None:
        algorithm = algorithm_class(name)
        return [{**_card(name, algorithm), "traffic": _traffic(algorithm)}]
    return [_card(known, algorithm) for known, algorithm in available_algorithms().items()]


def _card(name: str, algorithm: type[Algorithm]) -> dict[str, Any]:
    about = inspect.getdoc(algorithm) or ""
    title = algorithm.title or algorithm.__name__
    own = algorithm.__module__.startswith("coterie.algorithms.")
    return {
        "name": name,
        "title": title,
        "idea": _idea(algorithm, title, about),
        "paper": algorithm.paper,
        "cites": cited_keys(algorithm),
        "about": about,
        "evaluated": algorithm.evaluated,
        "variants": list(algorithm.variants),
        "options": [_option(field, algorithm) for field in fields(algorithm)],
        "deviations": list(algorithm.deviations),
        "page": f"docs/algorithms/{algorithm.name}.md" if own else None,
    }


def cited_keys(algorithm: type[Algorithm]) -> list[str]:
    """The keys of the entries that a method cites."""
    return [key.strip() for key in algorithm.cites.split(",") if key.strip()]


def _option(field: Any, algorithm: type[Algorithm]) -> dict[str, Any]:
    meaning, paper = explained(field.metadata)
    return {
        "name": field.name.rstrip("_"),
        "type": _readable(str(field.type)),
        "choices": [choice for choice in choices(algorithm).get(field.name, ()) if choice is not None],
        "range": str(bounds_of(algorithm, field.name)),
        "default": None if field.default is MISSING else field.default,
        "variants": {
            variant: defaults[field.name] for variant, defaults in algorithm.variants.items() if field.name in defaults
        },
        "paper": paper,
        "meaning": meaning,
    }


def _idea(algorithm: type[Algorithm], title: str, about: str) -> str:
    """One line: what the module says after the method's name, else the first sentence about the class."""
    module = inspect.getdoc(importlib.import_module(algorithm.__module__)) or ""
    names, colon, idea = module.split("\n", 1)[0].partition(": ")
    if colon and (names == title or names.startswith(f"{title} and ")):  # "FedAvg and FedAvg+FT: ..." is about FedAvg
        return idea.rstrip(".")
    first = about.split("\n\n", 1)[0].replace("\n", " ")
    return re.sub(rf"^{re.escape(title)}[^:]*:\s*", "", first).split(". ", 1)[0].rstrip(".")


def _traffic(algorithm: type[Algorithm]) -> dict[str, Any]:
    """What was measured, by variant (an empty name where there is none), and under which circumstances.

    A method that fails under them, which somebody else's may, is still listed, with the reason.
    """
    from coterie.experiment.traffic import SETTING, measured_traffic

    rows: dict[str, Any] = {}
    try:
        for variant in list(algorithm.variants) or [""]:
            rows[variant] = measured_traffic(algorithm, variant or None)
    except Exception as error:
        return {"setting": SETTING, "rows": {}, "failed": describe(error)}
    return {"setting": SETTING, "rows": rows, "failed": None}


def _readable(declared: str) -> str:
    """``Literal['cos', 'exp_cos'] | None`` as ``cos | exp_cos | None``."""
    return re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace("'", "").replace(", ", " | "), declared)
