"""What a stored model needs to be used without the run: its architecture, its inputs, and how candidates are mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coterie.contract import Predictor
from coterie.federation import ClientData, Federation
from coterie.models import ModelSpec


def handed_over(
    federation: Federation, model: ModelSpec, predictor: Predictor, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Facts for the metadata of the models of clients ``names: (a,)``, plain JSON values.

    Parameters
    ----------
    federation : Federation
        The clients' data, from which their models have learnt.
    model : ModelSpec
        The architecture.
    predictor : Predictor
        What they predict with, ``(a,)`` rows in the order of ``names``.
    names : sequence of str
        Some or all of the federation's clients.
    """
    common: dict[str, Any] = {
        "model": {"name": model.name, "options": dict(model.options)},
        "task": federation.task,
        "classes": federation.classes,
        "inputs": _inputs(federation.train),
    }
    if (scaling := federation.train.target_normal) is not None:
        common["targets"] = {"mean": scaling.mean.tolist(), "std": scaling.std.tolist()}
    if names_of_classes := federation.source.get("class_names"):
        common["labels"] = list(names_of_classes)
    sizes = {part: federation.split(part).n.tolist() for part in ("train", "validation", "test")}
    mixtures = _mixtures(predictor)
    place = {name: client for client, name in enumerate(federation.names)}
    facts = []
    for row, name in enumerate(names):
        client = place[name]
        facts.append({**common, "examples": {part: n[client] for part, n in sizes.items()}, **mixtures[row]})
    return facts


def _inputs(data: ClientData) -> dict[str, Any]:
    """How stored inputs become those of the model: ``(x * scale - mean) / std``, statistics by channel."""
    found: dict[str, Any] = {
        "shape": list(data.feature_shape),
        "dtype": str(data.inputs.dtype).removeprefix("torch."),
        "scale": data.scale if data.inputs.dtype == torch.uint8 else 1.0,
    }
    if data.normal is not None:
        found |= {"mean": data.normal.mean.flatten().tolist(), "std": data.normal.std.flatten().tolist()}
    return found


def _mixtures(predictor: Predictor) -> list[dict[str, Any]]:
    """For each row the weights of its candidates and what is averaged; nothing where it has one model."""
    rows = len(predictor.models)
    if predictor.single:
        return [{} for _ in range(rows)]
    count = predictor.models.lead[1]
    weights = [[1.0 / count] * count] * rows if predictor.weights is None else predictor.weights.double().tolist()
    return [{"mixture": {"weights": own, "combine": predictor.combine}} for own in weights]
