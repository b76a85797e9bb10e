"""Hyper-parameters that explain themselves."""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeVar

T = TypeVar("T")


def option(default: T, meaning: str, *, paper: str = "") -> T:
    """A hyper-parameter of an algorithm: its default, one line of meaning, and the value that its paper uses.

    ``lambda_: float = option(1.0, "strength of the pull; 0 is LOCAL", paper="0.1, 1 or 2")``
    """
    return field(default=default, metadata={"meaning": meaning, "paper": paper})


def explained(metadata: Any) -> tuple[str, str]:
    """The meaning and the paper's value of a dataclass field, empty where it was declared without."""
    return metadata.get("meaning", ""), metadata.get("paper", "")
