"""Coterie: personalised federated learning, so that every client ends better off than alone.

The names below are loaded when they are first used, so that ``import coterie`` and ``coterie --help`` stay
quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.config import Config, load_config
    from coterie.contract import Algorithm, available_algorithms, make_algorithm, register
    from coterie.errors import CoterieError, CoterieWarning
    from coterie.experiment import Adapted, Experiment, Interrupted, Result, adapt, resume, run
    from coterie.federation import ClientData, Federation, build_federation
    from coterie.production import Exported, export, predict
    from coterie.reports import Comparison, compare
    from coterie.tuning import Tuned, resume_tuning, tune

__all__ = [
    "Adapted",
    "Algorithm",
    "ClientData",
    "Comparison",
    "Config",
    "CoterieError",
    "CoterieWarning",
    "Experiment",
    "Exported",
    "Federation",
    "Interrupted",
    "Result",
    "Tuned",
    "adapt",
    "available_algorithms",
    "build_federation",
    "compare",
    "export",
    "load_config",
    "make_algorithm",
    "predict",
    "register",
    "resume",
    "resume_tuning",
    "run",
    "tune",
]

_HOMES = {
    "coterie.config": ("Config", "load_config"),
    "coterie.contract": ("Algorithm", "available_algorithms", "make_algorithm", "register"),
    "coterie.errors": ("CoterieError", "CoterieWarning"),
    "coterie.experiment": ("Adapted", "Experiment", "Interrupted", "Result", "adapt", "resume", "run"),
    "coterie.federation": ("ClientData", "Federation", "build_federation"),
    "coterie.production": ("Exported", "export", "predict"),
    "coterie.reports": ("Comparison", "compare"),
    "coterie.tuning": ("Tuned", "resume_tuning", "tune"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("coterie")
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
