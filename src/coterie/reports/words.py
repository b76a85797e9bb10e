"""Numbers as people say them."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.evaluation import metric_of, title_of


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: ``12 s``, ``3 min``, ``2.1 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_970 else f"{seconds / 3600:.1f} h"


def counted(number: int, thing: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def divided_anew(seeds: int) -> str:
    """What numbers of single clients are means of, where each of the seeds divides the data by itself."""
    return (
        f"Numbers of single clients are means over {counted(seeds, 'division')} of the data: each seed may divide them "
        "anew, unless federation.seed is set."
    )


def gain_over(metric: str, other: str) -> str:
    """What a gain over ``other`` is: points of a share, the part of an error that is saved, else more of the metric."""
    kind = metric_of(metric)
    if kind.is_share:
        return f"gain over {other} (points)"
    return f"error saved against {other}" if kind.is_error else f"gain in {title_of(metric)} over {other}"


def listed(names: Sequence[str], at_most: int = 4) -> str:
    """A few names, and how many there are besides."""
    few = ", ".join(names[:at_most])
    return few if len(names) <= at_most else f"{few} and {len(names) - at_most} more"
