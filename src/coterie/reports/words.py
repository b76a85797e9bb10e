"""Numbers as people say them."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: ``12 s``, ``3 min``, ``2.1 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_970 else f"{seconds / 3600:.1f} h"


def counted(number: int, thing: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], at_most: int = 4) -> str:
    """A few names, and how many there are besides."""
    few = ", ".join(names[:at_most])
    return few if len(names) <= at_most else f"{few} and {len(names) - at_most} more"
