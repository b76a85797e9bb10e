"""What became of newcomers, on disk: a table and models for each run, and one summary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from coterie.errors import CoterieError
from coterie.evaluation.tables import NEWCOMERS
from coterie.runs.atomic import atomic_path, write_json
from coterie.runs.directory import RunDirectory, make_folder, system_folder
from coterie.runs.models import save_models


@dataclass(frozen=True)
class NewcomersDirectory:
    """The folder ``newcomers/`` of a run, or one that ``coterie adapt`` has made."""

    path: Path

    @property
    def summary(self) -> Path:
        """One row a system and a way of joining, ``summary.json``."""
        return self.path / "summary.json"

    @property
    def config(self) -> Path:
        """Who came and how, ``newcomers.yaml``; written by ``coterie adapt``."""
        return self.path / "newcomers.yaml"

    def table(self, algorithm: str, variant: str | None, seed: int) -> Path:
        """The file ``<algorithm>-<variant>/seed<k>.csv`` of one run."""
        return self.path / system_folder(algorithm, variant) / f"seed{seed}.csv"

    def write(
        self, algorithm: str, variant: str | None, seed: int, table: pd.DataFrame, remarks: Sequence[str] = ()
    ) -> None:
        """Write the table of one run, and what could not be done; raises CoterieError when that is impossible."""
        path = self.table(algorithm, variant, seed)
        make_folder(path.parent)
        write_json(path.with_suffix(".json"), {"remarks": list(remarks)})
        with atomic_path(path) as temporary:
            table.to_csv(temporary, index=False)

    def read(self, keys: Sequence[tuple[str, str, int]]) -> pd.DataFrame:
        """The tables of the runs ``keys``, one below the other; runs without a table are left out.

        Raises
        ------
        CoterieError
            A file is damaged.
        """
        frames = [_read(path) for key in keys if (path := self.table(*key)).exists()]
        filled = [frame for frame in frames if len(frame)]
        return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(NEWCOMERS))

    def remarks(self, keys: Sequence[tuple[str, str, int]]) -> list[str]:
        """What could not be done in the runs ``keys``; unreadable files say nothing."""
        found = []
        for key in keys:
            path, name = self.table(*key).with_suffix(".json"), system_folder(key[0], key[1])
            with suppress(OSError, ValueError, KeyError, TypeError):
                texts = json.loads(path.read_text(encoding="utf-8"))["remarks"]
                found += [f"{name}, seed {key[2]}: {text}" for text in texts]
        return found

    def joined(self, labelled: bool) -> RunDirectory:
        """Where models lie, and of newcomers with labels the losses that a guard judges by."""
        return RunDirectory(self.path / ("labelled" if labelled else "unlabelled"))

    def save_models(
        self,
        algorithm: str,
        variant: str | None,
        seed: int,
        labelled: bool,
        names: Sequence[str],
        rows: Mapping[str, Tensor],
        *,
        round: int | None = None,
        facts: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Write what newcomers predict with to ``labelled/models/<system>/seed<k>/`` or ``unlabelled/models/...``."""
        save_models(self.joined(labelled), algorithm, variant, seed, names, rows, round=round, facts=facts)

    def write_summary(self, rows: Sequence[Mapping[str, Any]], remarks: Sequence[str] = ()) -> None:
        """Write ``summary.json`` in one step."""
        make_folder(self.path)
        write_json(self.summary, {"rows": [dict(row) for row in rows], "remarks": list(remarks)})

    def read_summary(self) -> list[dict[str, Any]]:
        """The rows of ``summary.json``.

        Raises
        ------
        CoterieError
            There is none, or it is damaged.
        """
        try:
            rows: list[dict[str, Any]] = json.loads(self.summary.read_text(encoding="utf-8"))["rows"]
        except FileNotFoundError as error:
            raise CoterieError(f"There is no {self.summary}: no newcomers have joined there.") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CoterieError(f"{self.summary} is damaged ({error}).") from error
        return rows


def _read(path: Path) -> pd.DataFrame:
    try:
        types: Any = dict.fromkeys(("algorithm", "variant", "client", "metric"), str)
        types |= {**dict.fromkeys(("seed", "epoch", "n"), int), "labelled": bool, "value": float}
        frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values={"value": [""]})
        return frame[list(NEWCOMERS)]
    except (OSError, ValueError, KeyError) as error:
        raise CoterieError(
            f"{path} is damaged ({str(error).splitlines()[0]}): delete it; coterie adapt gives it again."
        ) from error
