"""``coterie predict``: a client's model answers for new data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from coterie.errors import CoterieError
from coterie.production.building import check_facts, opened
from coterie.production.choice import choose
from coterie.production.data import read
from coterie.production.formats import Run, open_export
from coterie.production.preprocessing import FILE, Preprocessing

if TYPE_CHECKING:
    import pandas as pd

AT_ONCE = 1024
"""So many inputs are predicted together."""


def predict(
    directory: str | Path,
    client: str | None,
    data: Any,
    *,
    algorithm: str | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """What a client's model says of new data.

    Parameters
    ----------
    directory : path
        A run directory, or a folder that ``coterie export`` has written, which needs no run directory.
    client : str, optional
        The client; an export has only one.
    data : path, DataFrame or array
        A table (``.csv``, ``.parquet`` or a data frame) with the raw columns, an ``.npz`` with ``x`` or an array, or a
        folder of pictures.
    algorithm, seed : str, int, optional
        Of a run, as for `export`; an export has only one.

    Returns
    -------
    DataFrame
        One row an input: ``row`` (from 1) or ``file``, then ``class`` and ``p_<class>`` (``logit_<class>`` where the
        model was exported so), or the value of each target.

    Raises
    ------
    CoterieError
        No such model, or data that it does not take: one sentence for each difference.
    """
    import pandas as pd

    run, preprocessing = _model(Path(directory), client, algorithm, seed)
    batch = read(data, preprocessing)
    parts = [run(part).double().numpy() for part in torch.split(batch.inputs, AT_ONCE)] if len(batch.inputs) else []
    answers = np.concatenate(parts) if parts else np.empty((0, len(preprocessing.labels)))
    columns: dict[str, Any] = {batch.name: list(batch.rows)}
    if preprocessing.output == "values":
        prefix = ""
    else:
        columns["class"] = [preprocessing.labels[int(best)] for best in answers.argmax(1)] if len(answers) else []
        prefix = "p_" if preprocessing.output == "probabilities" else "logit_"
    columns |= {f"{prefix}{label}": answers[:, place] for place, label in enumerate(preprocessing.labels)}
    return pd.DataFrame(columns)


def _model(directory: Path, client: str | None, algorithm: str | None, seed: int | None) -> tuple[Run, Preprocessing]:
    """What answers, and what it takes: of an export, or of a run."""
    if (directory / FILE).is_file():
        preprocessing = Preprocessing.read(directory)
        _check_asked(directory, preprocessing, client, algorithm, seed)
        return open_export(directory), preprocessing
    chosen = choose(directory, client, algorithm, seed)
    if len(chosen) != 1:
        raise CoterieError("--client all: a prediction is one client's: name it.")
    check_facts(chosen[0])
    preprocessing, module = opened(chosen[0], logits=False)

    def run(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            outputs: torch.Tensor = module(inputs)
        return outputs

    return run, preprocessing


def _check_asked(
    directory: Path, export: Preprocessing, client: str | None, algorithm: str | None, seed: int | None
) -> None:
    """Raise CoterieError where an export is not the model that is asked for."""
    if client not in (None, export.client):
        raise CoterieError(f"{directory} is the model of {export.client}, not of {client}.")
    if algorithm not in (None, export.system, export.label, export.label.split(" (")[0]):
        raise CoterieError(f"{directory} is a model of {export.label}: leave out --algorithm {algorithm}.")
    if seed not in (None, export.seed):
        raise CoterieError(f"{directory} is a model of seed {export.seed}: leave out --seed {seed}.")
