"""One comparison of several runs: their results side by side, paired tests and average ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation import Report
from coterie.evaluation.significance import PairedTest, Ranks, average_ranks, holm, paired_test
from coterie.reports.joining import Standing, join
from coterie.reports.measures import Measure, measure_named
from coterie.reports.opened import open_run
from coterie.reports.settings import text_of

PREFERRED = "fedora"
"""The method against which the others are tested where nobody says which."""

SEARCH = "tune.yaml"
"""Marks the directory of a search, whose trials have validation results only."""


@dataclass(frozen=True)
class Against:
    """A system against the reference: None for both where they have no pair in common.

    ``p_holm`` is the p-value after Holm's correction for all tests of the comparison.
    """

    label: str
    test: PairedTest | None
    p_holm: float | None


@dataclass(frozen=True)
class Comparison:
    """What several runs say about their systems; make one with `compare`.

    Attributes
    ----------
    directories : tuple of Path
        The run directories.
    by : tuple of str
        Configuration keys by whose values the runs are grouped.
    measure : Measure
        The metric of tests, ranks and groups.
    standings : tuple of Standing
        One a system and group, named.
    rows : tuple of dict
        What `summarise` says of each standing, with the values ``by`` and the names of its ``runs``.
    values : DataFrame
        The metric, one column a system, one row a block: all that is known of one client with one seed (of one seed
        alone for ``worst``), within one group and one federation; NaN where a system has none.
    reference : str
        The system that the others are tested against.
    tests : tuple of Against
        One for each other system.
    ranks : Ranks, optional
        Average ranks over the blocks that all systems have; None with fewer than three systems or two blocks.
    notes : tuple of str
        What is missing, what could not be compared and why, one or more sentences each.
    """

    directories: tuple[Path, ...]
    by: tuple[str, ...]
    measure: Measure
    standings: tuple[Standing, ...]
    rows: tuple[dict[str, Any], ...]
    values: pd.DataFrame
    reference: str
    tests: tuple[Against, ...]
    ranks: Ranks | None
    notes: tuple[str, ...]

    @property
    def labels(self) -> list[str]:
        """The systems, in the order in which they come."""
        return [str(label) for label in self.values.columns]

    @cached_property
    def pairwise(self) -> dict[tuple[str, str], PairedTest]:
        """All pairs of systems that have a client and seed in common, tested without any correction."""
        found = {}
        for first, second in combinations(self.labels, 2):
            test = _test(self.values, first, second, self.measure)
            if test is not None:
                found[first, second] = test
        return found

    def as_dict(self, *, pairs: bool = False) -> dict[str, Any]:
        """The comparison as plain JSON values; ``pairs`` adds wins, ties and losses of all pairs of systems."""
        content: dict[str, Any] = {
            "runs": [str(path) for path in self.directories],
            "by": list(self.by),
            "metric": self.measure.name,
            "rows": list(self.rows),
            "reference": self.reference,
            "pair": self.measure.unit,
            "tests": [_told(each) for each in self.tests],
            "ranks": None if self.ranks is None else vars(self.ranks),
            "notes": list(self.notes),
        }
        if pairs:
            content["pairs"] = [
                {"system": first, "against": second, "wins": test.wins, "ties": test.ties, "losses": test.losses}
                for (first, second), test in self.pairwise.items()
            ]
        return content


def compare(
    paths: Sequence[Path | str],
    *,
    by: Sequence[str] = (),
    metric: str | None = None,
    reference: str | None = None,
    report: Report | None = None,
) -> Comparison:
    """Compare the systems of one or several runs, finished or not.

    Runs of one experiment with other seeds are pooled; whatever differs in its settings is a row of its own.

    Parameters
    ----------
    paths : sequence of Path or str
        Run directories.
    by : sequence of str
        Dotted configuration keys; runs are grouped by their values, and systems of one name are then one.
    metric : str, optional
        What is tested: ``accuracy`` (``mae`` for a regression), which is the default, ``r_acc`` (``r_mae``), ``ptr``,
        ``gain``, ``worst``, ``worst_decile`` or another metric that was measured.
    reference : str, optional
        The label or the method that all others are tested against; default: FEDORA where it is, else the best system.
    report : str, optional
        The protocol that chooses the reported round, instead of each run's own.

    Raises
    ------
    CoterieError
        A directory is not that of a run or has no results, or an argument names what is not there.
    """
    if not paths:
        raise CoterieError("Give at least one run directory.")
    for path in paths:
        if (Path(path) / SEARCH).is_file() and not (Path(path) / "clients.parquet").exists():
            raise CoterieError(
                f"{path} is the directory of a search, which never reads test data: run its best settings with "
                f"`coterie run {Path(path) / 'best.yaml'}` and compare that run."
            )
    by = tuple(dict.fromkeys(by))
    runs = [open_run(path) for path in paths]
    standings, notes = join(runs, by, report)
    others = dict.fromkeys(name for run in runs for found in run.results.values() for name in found.others)
    measure = measure_named(metric, runs[0].metric, others)
    values = _values(standings, measure)
    chosen = _reference(reference, standings, values, measure, notes)
    tests = _tests(values, chosen, measure)
    notes += _unmatched(values, chosen, tests)
    ranks = ranks_over(values, measure)
    if ranks is None and values.shape[1] > 2:
        complete = len(values.dropna())
        notes.append(
            f"There are no average ranks: they need two blocks (one {measure.unit} each) with results of all systems, "
            f"and there {'is' if complete else 'are'} {complete}."
        )
    rows = tuple(_row(standing, by) for standing in standings)
    directories = tuple(run.directory.path for run in runs)
    return Comparison(
        directories, tuple(by), measure, tuple(standings), rows, values, chosen, tests, ranks, tuple(notes)
    )


def ranks_over(values: pd.DataFrame, measure: Measure) -> Ranks | None:
    """Average ranks over the blocks that all systems have; ``values`` are those of a `Comparison`, or some of them.

    None with fewer than three systems or two blocks.
    """
    complete = values.dropna()
    if len(complete) < 2 or complete.shape[1] < 3:
        return None
    return average_ranks(complete, list(complete.columns), larger_is_better=measure.larger_is_better)


def _row(standing: Standing, by: Sequence[str]) -> dict[str, Any]:
    runs = list(dict.fromkeys(part.run_name for part in standing.parts))
    return {**standing.summary(), "by": dict(zip(by, standing.group, strict=True)), "runs": runs}


def _values(standings: Sequence[Standing], measure: Measure) -> pd.DataFrame:
    """The metric by block and system; clients of different federations are different, whatever their names."""
    columns: dict[str, dict[tuple[str, str, int, str], float]] = {}
    for standing in standings:
        column, group = columns.setdefault(standing.label, {}), text_of(list(standing.group))
        for part in standing.parts:
            for seed, own in part.results.items():
                found = measure.of(own, part.alone.get(seed))
                column |= {(group, part.federation, seed, str(client)): value for client, value in found.items()}
    names = ["group", "federation", "seed", "client"]
    series = {}
    for label, column in columns.items():
        series[label] = pd.Series(
            list(column.values()), pd.MultiIndex.from_tuples(list(column), names=names), dtype=float
        )
    return pd.DataFrame(series).replace([np.inf, -np.inf], np.nan)


def _reference(
    asked: str | None, standings: Sequence[Standing], values: pd.DataFrame, measure: Measure, notes: list[str]
) -> str:
    """The label of the system that the others are tested against."""
    methods: dict[str, set[str]] = {}
    for standing in standings:
        methods.setdefault(standing.parts[0].system[0], set()).add(standing.label)
    if asked is not None:
        fitting = {asked} & set(values.columns) or methods.get(asked, set())
        if len(fitting) != 1:
            what = "is none of the systems" if not fitting else "stands for several systems"
            raise CoterieError(
                f"--reference {asked} {what}: give one of {', '.join(sorted(fitting or values.columns))}."
            )
        return fitting.pop()
    trained_together = {standing.label for standing in standings if not standing.is_reference}
    candidates = sorted(methods.get(PREFERRED) or trained_together or set(values.columns))
    means = values[candidates].mean() * (1 if measure.larger_is_better else -1)
    if means.isna().all():
        return candidates[0]
    best = str(means.idxmax())
    if len(candidates) > 1:
        among = f" among the systems of {PREFERRED}" if PREFERRED in methods else ""
        notes.append(
            f"The reference {best} was chosen for its mean {measure.name}{among}, so that p-values against it are "
            "somewhat too small; --reference names one beforehand."
        )
    return best


def _test(values: pd.DataFrame, first: str, second: str, measure: Measure) -> PairedTest | None:
    """One system against another over the blocks that both have, None where there are none."""
    both = values[[first, second]].dropna()
    if both.empty:
        return None
    return paired_test(both[first], both[second], larger_is_better=measure.larger_is_better)


def _tests(values: pd.DataFrame, reference: str, measure: Measure) -> tuple[Against, ...]:
    labels = [str(label) for label in values.columns if label != reference]
    tests = [_test(values, label, reference, measure) for label in labels]
    corrected = iter(holm([test.p for test in tests if test is not None]))
    return tuple(
        Against(label, test, None if test is None else float(next(corrected)))
        for label, test in zip(labels, tests, strict=True)
    )


def _unmatched(values: pd.DataFrame, reference: str, tests: Sequence[Against]) -> list[str]:
    """Why some systems could not be compared."""
    lonely = [each.label for each in tests if each.test is None]
    if not lonely:
        return []
    index = values.index.to_frame(index=False)
    known = values.notna().to_numpy()
    federations = {label: set(index["federation"][known[:, i]]) for i, label in enumerate(values.columns)}
    apart = all(federations[label].isdisjoint(federations[reference]) for label in lonely)
    why = "their federations differ" if apart else "they share no client and seed with it"
    advice = "; --by puts each federation into a column of its own" if apart else ""
    return [f"Not compared with {reference}, since {why}: {', '.join(lonely)}{advice}."]


def _told(against: Against) -> dict[str, Any]:
    told: dict[str, Any] = {"system": against.label}
    fields = ("wins", "ties", "losses", "difference", "effect", "p", "exact")
    told["pairs"] = 0 if against.test is None else against.test.pairs
    told |= {field: None if against.test is None else getattr(against.test, field) for field in fields}
    return {**told, "p_holm": against.p_holm}
