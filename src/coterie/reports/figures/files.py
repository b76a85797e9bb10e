"""Figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from coterie.errors import CoterieError
from coterie.reports.figures.style import paper_style
from coterie.runs.atomic import atomic_path

MARK = "Coterie figure"
"""Stands in every file that `save_figure` writes: it replaces none without."""

FORMATS = ("pdf", "svg", "png")

_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"Creator": MARK, "CreationDate": None},
    "svg": {"Creator": MARK, "Date": None},
    "png": {"Software": MARK},
}


def save_figure(figure: Figure, path: Path, format: str) -> None:
    """Write a figure in one step; folders are made. The same figure gives the same bytes.

    Raises
    ------
    CoterieError
        ``path`` is something else than a figure of Coterie's, or cannot be written.
    """
    if path.is_dir() or (path.exists() and not _ours(path)):
        raise CoterieError(
            f"{path} exists and is no figure of Coterie's, so it stays as it is; choose another --output."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CoterieError(f"Cannot make the folder {path.parent}: {error.strerror or error}.") from error
    with paper_style(), atomic_path(path) as temporary:
        figure.savefig(temporary, format=format, metadata=_METADATA[format])


def _ours(path: Path) -> bool:
    try:
        return MARK.encode() in path.read_bytes()
    except OSError:
        return False
