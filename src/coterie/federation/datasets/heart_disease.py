"""UCI heart disease: who has it, from 13 findings, at four hospitals that did not all take the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@dataclass(frozen=True)
class Finding:
    """One column of the published files.

    Attributes:
        name: as in ``heart-disease.names``.
        centre, scale: a number ``x`` becomes ``(x - centre) / scale``; round figures, not statistics of the data.
        values: instead, the codes of a category, each of which becomes a column of zeros and ones.
        complete: no hospital lacks it; the others get a column that says where it is missing.
        zero_is_missing: some hospitals wrote 0 for what they had not taken.
    """

    name: str
    centre: float = 0.0
    scale: float = 1.0
    values: Sequence[int] = ()
    complete: bool = False
    zero_is_missing: bool = False


FINDINGS = (
    Finding("age", 50, 10, complete=True),
    Finding("sex", complete=True),
    Finding("cp", values=(1, 2, 3, 4), complete=True),
    Finding("trestbps", 130, 20, zero_is_missing=True),
    Finding("chol", 250, 50, zero_is_missing=True),
    Finding("fbs"),
    Finding("restecg", values=(0, 1, 2)),
    Finding("thalach", 140, 20),
    Finding("exang"),
    Finding("oldpeak"),
    Finding("slope", values=(1, 2, 3)),
    Finding("ca"),
    Finding("thal", values=(3, 6, 7)),
)
COLUMNS = len(FINDINGS) + 1  # the last is the diagnosis, 0 .. 4
FILES = "processed.<hospital>.data"


@register_source(
    "heart-disease",
    "920 patients of 4 hospitals, 32 inputs, 2 classes; missing findings are marked",
    f"heart-disease/{FILES} (4 files)",
)
def heart_disease(data_dir: Path | None) -> Examples:
    """Findings ``(920, 32)`` float32; class 1 is a diagnosis above 0. Natural groups: ``hospital``.

    Nothing is computed from the data, so nothing of one hospital leaks into another: numbers are scaled by round
    figures, categories become zeros and ones, and a missing finding is 0 everywhere with a further column that is 1.
    These 10 columns come last, one for every finding that some hospital lacks.

    Raises:
        CoterieError: a file is missing, or has another number of columns or a value that cannot be; it is named.
    """
    inputs, targets, groups = [], [], []
    for hospital in HOSPITALS:
        file = FILES.replace("<hospital>", hospital)
        path = find(data_dir, "heart-disease", [f"heart-disease/{file}"], f"the file {file}, one of {len(HOSPITALS)}")
        rows = _rows(path)
        inputs.append(_encode(rows[:, :-1], path))
        targets.append(_diagnoses(rows[:, -1], path))
        groups += [hospital] * len(rows)
    return Examples(
        "heart-disease",
        torch.from_numpy(np.concatenate(inputs)).float(),
        torch.from_numpy(np.concatenate(targets)),
        classes=2,
        groups={"hospital": groups},
    )


def _rows(path: Path) -> NDArray[np.float64]:
    """The values of a file, ``(n, 14)``; NaN stands for ``?``."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CoterieError(f"{path} cannot be read: {error.strerror}. Check that it is a readable file.") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != COLUMNS:
            raise CoterieError(
                f"{path}, line {number} has {len(cells)} values where {COLUMNS} are expected: the file is truncated or "
                "another one. Replace it by the published file."
            )
        try:
            rows.append([float("nan") if cell == "?" else float(cell) for cell in cells])
        except ValueError as error:
            raise CoterieError(
                f"{path}, line {number} holds text where a number or ? is expected ({error}). Replace it by the "
                "published file."
            ) from error
    if not rows:
        raise CoterieError(f"{path} is empty. Replace it by the published file.")
    return np.array(rows)


def _encode(rows: NDArray[np.float64], path: Path) -> NDArray[np.float64]:
    """Findings ``(n, 13)`` as inputs ``(n, 32)``."""
    inputs, marks = [], []
    for finding, column in zip(FINDINGS, rows.T, strict=True):
        missing = np.isnan(column) | (finding.zero_is_missing & (column == 0))
        if finding.complete and missing.any():
            raise CoterieError(
                f"{path}, line {int(missing.argmax()) + 1} lacks {finding.name}, which every hospital has. Replace the "
                "file by the published one."
            )
        if not finding.complete:
            marks.append(missing)
        if not finding.values:
            inputs.append(np.where(missing, 0.0, (column - finding.centre) / finding.scale))
            continue
        wrong = ~missing & ~np.isin(column, finding.values)
        if wrong.any():
            line = int(wrong.argmax())
            raise CoterieError(
                f"{path}, line {line + 1}: {finding.name} is {column[line]:g}, which is none of "
                f"{', '.join(map(str, finding.values))}. Replace the file by the published one."
            )
        inputs += [column == value for value in finding.values]
    return np.stack([*inputs, *marks], axis=1).astype(np.float64)


def _diagnoses(column: NDArray[np.float64], path: Path) -> NDArray[np.int64]:
    wrong = ~np.isin(column, range(5))
    if wrong.any():
        line = int(wrong.argmax())
        raise CoterieError(
            f"{path}, line {line + 1}: the diagnosis is {column[line]:g}, outside the classes 0 .. 4. Replace the file "
            "by the published one."
        )
    return (column > 0).astype(np.int64)
