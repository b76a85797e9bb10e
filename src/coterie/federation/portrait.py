"""A portrait of a federation in plain JSON values: who owns how much of what, how alike clients are, some examples."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.federation.data import ClientData
from coterie.federation.federation import SPLITS, Federation

SHOWN_CLIENTS, SHOWN_EXAMPLES, SHOWN_PIXELS = 12, 6, 32
"""Of pictures: so many clients, examples of each, and pixels along the longer side."""

COMPARED_CLIENTS = 200
"""All pairs of clients are compared up to that many; above, only how alike each is to the others on average."""

COUNTED_CELLS = 200_000
"""The table of clients by classes is left out where it would be larger."""

FEATURES = 100
"""Means and deviations of single features are given up to that many."""

WIDTH = 64
"""Inputs are projected to that many numbers before clients are compared."""

AT_ONCE = 8192


def portrait(federation: Federation, *, samples: bool = True) -> dict[str, Any]:
    """What a report shows of the clients' training data; plain JSON values.

    ``similarity`` is the cosine between two clients' sums of inputs, taken class by class (projected at random to 64
    numbers and centred): 1 for the same data, near 0 for unrelated ones. A federation whose examples are not here has
    names and numbers only.

    Parameters
    ----------
    federation : Federation
    samples : bool
        Show some pictures; no other entry holds single examples.
    """
    classification = federation.task == "classification"
    found: dict[str, Any] = {
        "source": federation.source.get("source"),
        "task": federation.task,
        "classes": federation.classes,
        "feature_shape": list(federation.feature_shape),
        "names": list(federation.names),
        "n": {split: federation.split(split).n.tolist() for split in SPLITS},
        "columns": {key: list(column) for key, column in federation.columns.items()},
    }
    if labels := class_labels(federation):
        found["labels"] = labels
    if not _present(federation.train):
        return found
    if classification and federation.k * federation.classes <= COUNTED_CELLS:
        found["class_counts"] = federation.class_counts().tolist()
    unit = _profiles(federation)
    found["similarity_mean"] = _rounded(_mean_of_others(unit))
    if federation.k <= COMPARED_CLIENTS:
        found["similarity"] = _rounded(unit @ unit.T)
    if len(federation.feature_shape) == 1 and federation.feature_shape[0] <= FEATURES:
        mean, std = _features(federation)
        found["features"] = {"mean": _rounded(mean), "std": _rounded(std)}
    elif samples and len(federation.feature_shape) == 3 and federation.feature_shape[0] in (1, 3):
        found["samples"] = _samples(federation)
    return found


def class_labels(federation: Federation) -> list[str]:
    """Names of the classes in order, where the data name them other than 0, 1, ..., as tables and folders may."""
    schemas = [federation.source.get("schema"), *(federation.source.get("schemas") or {}).values()]
    named = list(federation.source.get("class_names") or [])
    labels = next((list(schema.get("labels") or []) for schema in schemas if schema), named)
    return [] if labels == [str(c) for c in range(len(labels))] else labels


def _present(data: ClientData) -> bool:
    """Whether the examples themselves are here: sites tell their numbers only."""
    return data.index is None or len(data.inputs) > 1


def _chunks(data: ClientData) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Owners ``(b,)``, flat inputs ``(b, size)``, targets ``(b, ...)`` of all examples on the CPU, some at a time."""
    owners, first = data.owners().cpu(), int(data.offsets[0])
    for start in range(0, data.total, AT_ONCE):
        stop = min(start + AT_ONCE, data.total)
        inputs, targets = data.batch(torch.arange(first + start, first + stop, device=data.offsets.device))
        yield owners[start:stop], inputs.flatten(1).float().cpu(), targets.cpu()


def _profiles(federation: Federation) -> Tensor:
    """What clients are compared by, of length 1 each, ``(K, C * WIDTH)``; zeros for clients that are like the mean."""
    data = federation.train
    size = math.prod(federation.feature_shape)
    projection = torch.randn(size, min(WIDTH, size), generator=torch.Generator().manual_seed(0)) / math.sqrt(size)
    by_class = federation.task == "classification" and federation.k * federation.classes <= COUNTED_CELLS
    groups = federation.classes if by_class else 1
    sums = torch.zeros(federation.k * groups, projection.shape[1])
    for owners, inputs, targets in _chunks(data):
        sums.index_add_(0, owners * groups + targets if by_class else owners, inputs @ projection)
    profile = sums.view(federation.k, -1) / data.n.cpu().clamp(min=1).unsqueeze(1)
    return torch.nn.functional.normalize(profile - profile.mean(0), dim=1)


def _mean_of_others(unit: Tensor) -> Tensor:
    """Of each client, the mean cosine with all others, ``(K,)``; no table of all pairs is made."""
    return ((unit @ unit.sum(0)) - (unit * unit).sum(1)) / max(1, len(unit) - 1)


def _features(federation: Federation) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature at each client, ``(K, size)``."""
    size, n = math.prod(federation.feature_shape), federation.train.n.cpu().clamp(min=1).unsqueeze(1)
    sums, squares = torch.zeros(federation.k, size).double(), torch.zeros(federation.k, size).double()
    for owners, inputs, _ in _chunks(federation.train):
        sums.index_add_(0, owners, inputs.double())
        squares.index_add_(0, owners, inputs.double().square())
    mean = sums / n
    return mean, (squares / n - mean.square()).clamp(min=0).sqrt()


def _samples(federation: Federation) -> dict[str, Any]:
    """The first pictures of some clients as bytes, ``(clients, examples, height, width, channels)``."""
    data, k = federation.train, federation.k
    clients = sorted({round(i * (k - 1) / max(1, min(k, SHOWN_CLIENTS) - 1)) for i in range(min(k, SHOWN_CLIENTS))})
    count = min(SHOWN_EXAMPLES, int(data.n[clients].min()))
    pictures = torch.stack([_shrunk(_first(data, client, count)) for client in clients])
    low, high = pictures.min(), pictures.max()
    levels = ((pictures - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    content = levels.permute(0, 1, 3, 4, 2).contiguous()
    return {
        "clients": [federation.names[client] for client in clients],
        "shape": list(content.shape),
        "pixels": base64.b64encode(content.numpy().tobytes()).decode(),
    }


def _first(data: ClientData, client: int, count: int) -> Tensor:
    start = int(data.offsets[client])
    inputs, _ = data.batch(torch.arange(start, start + count, device=data.offsets.device))
    return inputs.float().cpu()


def _shrunk(pictures: Tensor) -> Tensor:
    """Pictures ``(n, c, h, w)`` whose longer side has at most `SHOWN_PIXELS`."""
    step = math.ceil(max(pictures.shape[2:]) / SHOWN_PIXELS)
    return torch.nn.functional.avg_pool2d(pictures, step) if step > 1 else pictures


def _rounded(values: Tensor) -> Any:
    """Nested lists with four decimals, so that the file stays small."""
    return values.double().mul(1e4).round().div(1e4).tolist()
