"""What a federation looks like: a table, a grid for the terminal and a plot."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from rich.table import Table
from rich.text import Text

from coterie.federation.federation import SPLITS, Federation, Split
from coterie.federation.portrait import class_labels

ROWS = 60  # the grid joins clients above that many rows
NUMBERS = 20  # above that many classes the cells carry colour only
EMPTY, FULL = (32, 34, 46), (64, 196, 170)  # colours of no example and of most examples, red green blue


def describe(federation: Federation) -> pd.DataFrame:
    """One row a client: name, examples by split, classes in training, and facts such as the angle."""
    columns: dict[str, object] = {"client": list(federation.names)}
    for split in SPLITS:
        columns[split] = federation.split(split).n.cpu().numpy()
    if federation.task == "classification":
        columns["classes"] = (federation.class_counts() > 0).sum(1).cpu().numpy()
    columns.update(federation.columns)
    return pd.DataFrame(columns)


def class_grid(federation: Federation, split: Split = "train") -> Table:
    """Clients by classes as coloured cells for the terminal; the brighter, the more examples.

    Above 60 clients neighbours share a row, which then holds their sum. A regression has no classes: its
    grid holds the sizes only.
    """
    sizes = federation.split(split).n.cpu().numpy()
    joined = math.ceil(federation.k / ROWS)
    starts = np.arange(0, federation.k, joined)
    caption = f"{split} examples by client and class"
    if joined > 1:
        caption += f"; each row joins {joined} clients"
    table = Table(box=None, padding=0, caption=caption, header_style="bold", collapse_padding=True)
    table.add_column("client", no_wrap=True)
    table.add_column("  n ", justify="right")
    counts = np.zeros((federation.k, 0), dtype=np.int64)
    if federation.task == "classification":
        counts = federation.class_counts(split).cpu().numpy()
    rows = np.add.reduceat(counts, starts, axis=0)
    width = max(4, len(str(rows.max(initial=0))) + 1) if rows.shape[1] <= NUMBERS else 1
    for c in range(rows.shape[1]):
        label = str(c) if width > 1 else str(c % 10)
        table.add_column(label, justify="right", width=width, no_wrap=True)
    top = rows.max(initial=1)
    if (named := class_labels(federation)) and counts.shape[1]:
        table.caption = f"{caption}: {', '.join(f'{c} = {name}' for c, name in enumerate(named))}"
    for row, n, start in zip(rows, np.add.reduceat(sizes, starts), starts.tolist(), strict=True):
        last = min(start + joined, federation.k) - 1
        name = federation.names[start] + (f" … {federation.names[last]}" if last > start else "")
        table.add_row(name, f"  {n} ", *(_cell(int(m), int(top), width) for m in row))
    return table


def class_plot(federation: Federation, split: Split = "train") -> go.Figure:
    """Classes by client as stacked bars (``.write_html(path)`` writes a page); for a regression the sizes."""
    figure = go.Figure()
    names = list(federation.names)
    if federation.task == "classification":
        counts, labels = federation.class_counts(split).cpu().numpy(), class_labels(federation)
        for c in range(federation.classes):
            figure.add_bar(x=names, y=counts[:, c], name=labels[c] if labels else f"class {c}")
    else:
        figure.add_bar(x=names, y=federation.split(split).n.cpu().numpy(), name="examples")
    figure.update_layout(
        barmode="stack",
        bargap=0.1,
        title=f"{split.capitalize()} examples by client and class",
        xaxis_title="client",
        yaxis_title="examples",
        template="plotly_white",
    )
    return figure


def _cell(count: int, top: int, width: int) -> Text:
    """One cell, coloured by the square root of its share, so that small counts still show."""
    share = math.sqrt(count / max(1, top))
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(EMPTY, FULL, strict=True))
    text = str(count) if width > 1 and count else ""
    ink = "black" if share > 0.55 else "white"
    return Text(text.rjust(width), style=f"{ink} on rgb({red},{green},{blue})")
