"""What trackers have of a run, and what they should have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from coterie.runs import system_folder

Numbers = dict[tuple[str, str, int], float]
"""By run, such as ``ditto/seed0``, name and round."""


def once(entries: Iterable[tuple[tuple[str, str, int], float]]) -> Numbers:
    """The entries as a mapping, none of which is there twice."""
    listed = list(entries)
    twice = [key for key, count in Counter(key for key, _ in listed).items() if count > 1]
    assert not twice, twice
    return dict(listed)


def of_the_history(run: Path) -> Numbers:
    """What trackers should have."""
    history, timings = (pd.read_parquet(run / f"{table}.parquet") for table in ("history", "timings"))
    numbers = [
        (row, f"{row.split or row.phase}/{row.metric.replace(':', '_')}", row.value) for row in history.itertuples()
    ]
    numbers += [(row, f"seconds/{row.phase}", row.seconds) for row in timings.itertuples()]
    return once(
        ((f"{system_folder(row.algorithm, row.variant)}/seed{row.seed}", name, row.round), value)
        for row, name, value in numbers
    )


def of_tensorboard(run: Path) -> Numbers:
    """What TensorBoard shows."""
    folder, found = run / "tracking" / "tensorboard", []
    for place in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(place), size_guidance={"tensors": 0}).Reload()
        for tag in events.Tags()["tensors"]:
            if not tag.startswith("_hparams_"):
                found += [
                    ((str(place.relative_to(folder)), tag, event.step), tensor_util.make_ndarray(event.tensor_proto))
                    for event in events.Tensors(tag)
                ]
    return once((key, value.item()) for key, value in found)


def of_mlflow(run: Path, experiment: str = "tiny") -> tuple[Numbers, dict[str, Any]]:
    """What MLflow has in its database, and its runs."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run / 'tracking' / 'mlflow' / 'mlflow.db'}")
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id])
    numbers, by_folder = [], {}
    for each in runs:
        parameters = each.data.params
        folder = f"{system_folder(parameters['algorithm.name'], None)}/seed{parameters['seed']}"
        by_folder[folder] = each
        for name in each.data.metrics:
            numbers += [
                ((folder, name, metric.step), metric.value)
                for metric in client.get_metric_history(each.info.run_id, name)
            ]
    assert len(by_folder) == len(runs)
    return once(numbers), by_folder
