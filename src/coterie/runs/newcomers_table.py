"""The table of newcomers: one line a system and a way of joining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from coterie.evaluation.catalogue import metric_of, title_of
from coterie.runs.columns import UNDEFINED
from coterie.runs.table import plain_table

NAMES = {"mae": "mean absolute error", "accuracy": "accuracy"}

LANDMARKS = (1, 5, 20)
"""Epochs that get a column, as far as there are so many, beside the last one."""


def newcomers_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of a newcomers' summary as a table for a terminal of 80 to 100 columns."""
    metric = str(rows[0]["metric"]) if rows else "accuracy"
    points = metric_of(metric).is_share
    epochs = max((row["epochs"] for row in rows), default=0)
    shown = sorted({epoch for epoch in LANDMARKS if epoch < epochs} | ({epochs} if epochs else set()))
    seeds = max((len(row["seeds"]) for row in rows), default=1)
    over = f", ± over {seeds} seeds" if seeds > 1 else ""
    count = max((row["newcomers"] for row in rows), default=0)
    of = "1 newcomer" if count == 1 else f"{count} newcomers"
    table = plain_table(
        f"Newcomers: {NAMES.get(metric, title_of(metric))}",
        f"Means over {of}{over}, on arrival and after epochs on their own data; the server is that of the "
        "last round. Gain and PTR: at the last epoch, against as many epochs alone (LOCAL).",
    )
    for number, header in enumerate(
        (
            "System",
            "Labels",
            "On\narrival",
            *(f"{epoch}\nepochs" for epoch in shown),
            "Gain\n(points)" if points else "Gain",
            "PTR",
            "Received",
        )
    ):
        table.add_column(header, justify="left" if number < 2 else "right", no_wrap=number > 1)
    for row in rows:
        curve = [_value(row, epoch, points) if epoch <= row["epochs"] else UNDEFINED for epoch in (0, *shown)]
        compared = row["gain_mean"] is not None and not row["reference"]
        gain = (f"{row['gain_mean']:+.1f}" if points else f"{row['gain_mean']:+.4g}") if compared else UNDEFINED
        share = f"{row['ptr']:.2f}" if compared else UNDEFINED
        failed = f" ({row['failed']} failed)" if row["failed"] else ""
        failed += f" ({row['undefined']} undefined)" if row.get("undefined") else ""
        labels = "yes" if row["labelled"] else "no"
        table.add_row(Text(f"{row['label']}{failed}"), labels, *curve, gain, share, decimal(int(row["bytes_received"])))
    return table


def _value(row: Mapping[str, Any], epoch: int, points: bool) -> str:
    mean, spread = row["curve"][epoch], row["curve_std"][epoch]
    if mean is None:
        return UNDEFINED
    form = ".3f" if points else ".4g"
    return (
        f"{mean:{form}}±{spread:{form}}" if len(row["seeds"]) > 1 and epoch in (0, row["epochs"]) else f"{mean:{form}}"
    )
