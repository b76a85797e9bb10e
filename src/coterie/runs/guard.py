"""What each client decided under the guard, on disk: ``guard.csv``, one row a system, seed and client."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation.reported import System
from coterie.runs.atomic import write_text
from coterie.runs.directory import RunDirectory

COLUMNS = (
    "algorithm", "variant", "seed", "client", "n", "difference", "standard_error", "expected", "confidence", "keeps",
)  # fmt: skip
"""``keeps`` is ``personalised`` or ``local``; the numbers are those of `coterie.evaluation.guard`."""

GUARDED = "guard"
"""How the variant of a guarded system ends."""


def unguarded(system: System) -> System | None:
    """The system that is guarded under this name; None where nothing is."""
    algorithm, variant = system
    *stated, last = variant.split("+")
    return (algorithm, "+".join(stated)) if last == GUARDED else None


def save_guard(run: RunDirectory, decisions: pd.DataFrame) -> None:
    """Write the decisions in one step; raises CoterieError when that is impossible."""
    write_text(run.guard, decisions.to_csv(index=False, columns=list(COLUMNS)))


def load_guard(run: RunDirectory) -> pd.DataFrame:
    """The decisions of a run, none where no system is guarded.

    Raises
    ------
    CoterieError
        The file is damaged.
    """
    if not run.guard.exists():
        return pd.DataFrame(columns=list(COLUMNS))
    try:
        texts = dict.fromkeys(("algorithm", "variant", "client", "keeps"), str)
        table = pd.read_csv(run.guard, dtype=texts, na_filter=False)
        numbers = ["n", "difference", "standard_error", "expected", "confidence"]
        return table[list(COLUMNS)].assign(**{name: pd.to_numeric(table[name], errors="coerce") for name in numbers})
    except (OSError, ValueError, KeyError) as error:
        raise CoterieError(f"{run.guard} is damaged ({str(error).splitlines()[0]}).") from error


def guard_sentences(decisions: pd.DataFrame, label: Callable[[System], str], who: str = "Clients") -> list[str]:
    """How often they keep the model that they trained alone: one sentence for all systems, none without any."""
    counts = []
    for (algorithm, variant), rows in decisions.groupby(["algorithm", "variant"], sort=False):
        alone = int((rows["keeps"] == "local").sum())
        counts.append(f"{label((str(algorithm), str(variant)))} {alone} of {len(rows)} times")
    if not counts:
        return []
    seeds = decisions["seed"].nunique()
    over = f", over {seeds} seeds" if seeds > 1 else ""
    return [f"{who} keep the model that they trained alone{over}: {', '.join(counts)}."]
