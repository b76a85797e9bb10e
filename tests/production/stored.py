"""Models as a run stores them, without training, and what the framework itself predicts with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from coterie.contract import Predictor
from coterie.experiment.handover import handed_over
from coterie.federation import ClientData, Federation
from coterie.federation.data import Normal
from coterie.federation.frames import encode
from coterie.federation.schema import Feature, Schema
from coterie.models import Models, ModelSpec, Stack
from coterie.models.factory import build_model
from coterie.runs import RunDirectory, save_models

NAMES = ("north", "south")


def stack_of(federation: Federation, spec: ModelSpec) -> Stack:
    def build() -> Any:
        return build_model(spec.name, federation.feature_shape, federation.classes, federation.task, **spec.options)

    return Stack(build, federation.feature_shape)


def store(
    folder: Path,
    federation: Federation,
    spec: ModelSpec,
    *,
    algorithm: str = "ditto",
    schemas: Mapping[str, Any] | None = None,
) -> tuple[RunDirectory, Models]:
    """A run directory with one random model a client, and the models."""
    run = RunDirectory.create(folder, "stored") if not folder.exists() else RunDirectory(folder)
    models = stack_of(federation, spec).initial(7, federation.k, distinct=True)
    facts = handed_over(federation, spec, Predictor(models), federation.names)
    save_models(run, algorithm, "", 0, federation.names, models.tensors, round=3, facts=facts)
    if schemas is not None:
        (run.path / "schemas").mkdir(exist_ok=True)
        (run.path / "schemas" / "seed0.json").write_text(json.dumps(schemas))
    return run, models


def answers(federation: Federation, spec: ModelSpec, models: Models, client: int) -> Tensor:
    """The outputs ``(n, C)`` on a client's training inputs, as evaluation computes them."""
    inputs, _ = federation.train.client(client)
    with torch.no_grad():
        return stack_of(federation, spec).forward(models[client : client + 1].tensors, inputs[None])[0]


def federation_of(
    inputs: Tensor, classes: int = 3, *, task: Any = "classification", scale: float = 1.0, normal: Normal | None = None
) -> Federation:
    """Two clients that share the inputs out between them."""
    n = len(inputs)
    targets = torch.arange(n) % classes if task == "classification" else torch.rand(n, classes)
    data = ClientData(inputs, targets, torch.tensor([0, n // 2, n]), scale=scale, normal=normal)
    return Federation(NAMES, data, data, data, task, classes)


# --- a table ---------------------------------------------------------------------------------------------------------

SCHEMA = Schema(
    classes=2,
    labels=["no", "yes"],
    target="ill",
    features=[
        Feature(name="year", mean=2015.25, std=0.5),
        Feature(name="ward", kind="category", values=["a", "b", "7"]),
        Feature(name="dose", mean=1.5, std=2.0, missing=True),
        Feature(name="sex", kind="category", values=["f", "m"], missing=True),
    ],
)
ROWS = [
    "2015.1,a,1.0,f,yes",
    "2016.3,b,,m,no",
    "2014.7,7,-2.5,,no",
    "2015.0,7.0,?,f,yes",
    "2015.9,a,0,,yes",
    "2016.0,b,3.25,m,no",
]
HEADER = "year,ward,dose,sex,ill"


def table(folder: Path, rows: list[str] = ROWS, header: str = HEADER) -> Path:
    path = folder / "patients.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def of_table(path: Path) -> Federation:
    """Both clients have the whole table."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert SCHEMA.features is not None
    inputs = torch.from_numpy(encode(frame, SCHEMA.features))
    return federation_of(torch.cat([inputs, inputs]), 2)
