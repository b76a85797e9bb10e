"""The columns of a result table: what each shows of a summary's row, and who wins it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.evaluation.catalogue import metric_of, title_of
from coterie.evaluation.summary import relative_key

Row = Mapping[str, Any]

Mark = Literal["", "best", "second"]

UNDEFINED = "–"


@dataclass(frozen=True)
class Column:
    """One column of a result table.

    ``name`` is how a person asks for it; ``keys`` are the numbers of a row behind it, first the one by which systems
    compete; ``show`` prints a row's cell, and ``total`` gives its number where that is no single one. ``better`` is 1
    where larger is better, -1 where smaller is, 0 where there is nothing to win. LOCAL wins nothing in a column that is
    ``against_local``.
    """

    name: str
    header: str
    keys: tuple[str, ...]
    show: Callable[[Row], str]
    better: int = 0
    against_local: bool = False
    total: Callable[[Row], float] | None = None

    def number(self, row: Row) -> float | None:
        """Return the number behind the text, None where it is not defined."""
        value: float | None = row.get(self.keys[0]) if self.total is None else self.total(row)
        return value

    def marks(self, rows: Sequence[Row]) -> list[Mark]:
        """Return the mark of each row: the best value, and the second best; those that print alike are marked alike.

        A single competitor wins nothing.
        """
        competing = [self.better != 0 and self.number(row) is not None and not self._exempt(row) for row in rows]
        shown = [self.show(row).split("±")[0] for row in rows]
        order = sorted(
            (i for i, competes in enumerate(competing) if competes),
            key=lambda i: (self.better * (self.number(rows[i]) or 0.0), shown[i]),
            reverse=True,
        )
        texts = list(dict.fromkeys(shown[i] for i in order)) if len(order) > 1 else []
        by_text: dict[str, Mark] = dict(zip(texts, ("best", "second"), strict=False))
        return [by_text.get(text, "") if competes else "" for text, competes in zip(shown, competing, strict=True)]

    def _exempt(self, row: Row) -> bool:
        """Say whether a row cannot win: LOCAL where systems are compared with LOCAL."""
        return self.against_local and bool(row.get("reference"))


def metric_of_rows(rows: Sequence[Row]) -> str:
    """The metric in which the rows are reported; those of a run of an earlier version do not say it."""
    if not rows:
        return "accuracy"
    return str(rows[0].get("metric") or ("mae" if "mae_mean" in rows[0] else "accuracy"))


def columns(metric: str) -> list[Column]:
    """The columns of a result table in their order, where results are reported in ``metric``."""
    kind, relative = metric_of(metric), relative_key(metric)
    form, sign = (".3f", 1) if kind.larger_is_better else (".4g", -1)
    quality = [metric_column(metric)]
    if relative is not None:
        header = "R-Acc" if metric == "accuracy" else f"R-{title_of(metric)}"
        quality.append(
            Column(relative, header, (relative, f"{relative}_std"), lambda row: _one(row, relative, "+.3f"), 1, True)
        )
    quality.append(Column("ptr", "PTR", ("ptr", "ptr_std"), lambda row: _one(row, "ptr", ".2f"), 1, True))
    if kind.is_share:
        quality.append(Column("gain", "Gain\n(points)", ("gain_mean", "gain_std"), _gain, 1, True))
    return [
        *quality,
        Column("worst", "Worst", ("worst",), lambda row: _one(row, "worst", form), sign),
        Column("worst_decile", "Worst\n10 %", ("worst_decile",), lambda row: _one(row, "worst_decile", form), sign),
        Column("bytes", "Bytes", ("bytes_up", "bytes_down", "bytes_peer"), _size, total=_bytes),
        Column("seconds", "Time", ("seconds",), _time),
    ]


def metric_column(name: str) -> Column:
    """The column of one metric: its mean over clients."""
    up, title = metric_of(name).larger_is_better, title_of(name)
    form, mean, deviation = ".3f" if up else ".4g", f"{name}_mean", f"{name}_std"
    header = title if len(title) < 12 else title.replace(" ", "\n", 1)
    return Column(name, header, (mean, deviation), lambda row: _pair(row, mean, deviation, form), 1 if up else -1)


def _one(row: Row, key: str, form: str) -> str:
    """Print one number."""
    value = row.get(key)
    return UNDEFINED if value is None else format(value, form)


def _pair(row: Row, key: str, deviation: str, form: str) -> str:
    """Print mean and standard deviation over seeds; one seed has no deviation to speak of."""
    if row.get(key) is None or row.get(deviation) is None or len(row.get("seeds") or ()) < 2:
        return _one(row, key, form)
    return f"{row[key]:{form}}±{row[deviation]:{form}}"


def _gain(row: Row) -> str:
    """Print mean and standard deviation over clients of the individual gain."""
    if row.get("gain_mean") is None:
        return UNDEFINED
    return f"{row['gain_mean']:+.1f}±{row['gain_std']:.1f}"


def _bytes(row: Row) -> float:
    """Return all bytes that training has moved, up, down and between clients."""
    return float(sum(row.get(f"bytes_{way}") or 0 for way in ("up", "down", "peer")))


def _size(row: Row) -> str:
    """Print all bytes in the unit that suits them."""
    size = _bytes(row)
    units = iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while size >= 999.5:
        size, unit = size / 1000, next(units)
    return f"{size:.1f} {unit}" if size < 9.95 and unit != "B" else f"{size:.0f} {unit}"


def _time(row: Row) -> str:
    """Print the seconds of a run in the unit that suits them."""
    seconds = row.get("seconds")
    if seconds is None:
        return UNDEFINED
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_970 else f"{seconds / 3600:.1f} h"
