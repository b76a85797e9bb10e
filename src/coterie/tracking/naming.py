"""What metrics and parameters are called; the names are legal with every tracker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Plain = bool | int | float | str

LONGEST = 500
"""Characters of a parameter's value, which older MLflow servers take."""


def metric_name(phase: str, split: str, metric: str) -> str:
    """The name of a number of the history, with the split, or else the phase, before the slash.

    ``test/accuracy``, ``validation/loss_weighted``, ``train/bytes_up_model``, ``train/mean_entropy``; the seconds of a
    phase are ``seconds/train``. MLflow on Windows and W&B take neither colons nor anything else unusual.
    """
    return f"seconds/{_legal(phase)}" if metric == "seconds" else f"{_legal(split or phase)}/{_legal(metric)}"


def flattened(tree: Mapping[str, Any]) -> dict[str, Plain]:
    """Nested settings as one level: ``training.lr``; lists are text, unset values are left out."""
    flat: dict[str, Plain] = {}
    for key, value in tree.items():
        name = _legal(str(key))
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": plain for inner, plain in flattened(value).items()}
        elif isinstance(value, bool | int | float):
            flat[name] = value
        elif value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            flat[name] = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    return flat


def _legal(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)
