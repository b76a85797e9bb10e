"""A client's model with all that happens to its inputs before and to its outputs after, as one module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.federation.schema import Feature


class TableInputs(nn.Module):
    """Raw columns to inputs: standardised numbers, a one for each category, marks where values are missing.

    It takes ``(n, F)`` float64, one column a feature: a number as it is, a category as its place among the values (-1
    for any other), NaN where the value is missing. It gives ``(n, d)`` float32, as ``federation.frames.encode``.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        super().__init__()
        columns = [(i, feature, place) for i, feature in enumerate(features) for place in range(feature.width)]
        number = [feature.kind == "number" for _, feature, _ in columns]
        self.register_buffer("source", torch.tensor([i for i, _, _ in columns]))
        self.register_buffer("is_number", torch.tensor(number))
        self.register_buffer("place", torch.tensor([float(place) for _, _, place in columns], dtype=torch.float64))
        self.register_buffer("mean", torch.tensor([feature.mean for _, feature, _ in columns], dtype=torch.float64))
        self.register_buffer("std", torch.tensor([feature.std for _, feature, _ in columns], dtype=torch.float64))
        marked = [i for i, feature in enumerate(features) if feature.missing]
        self.register_buffer("marked", torch.tensor(marked, dtype=torch.int64))

    source: Tensor
    is_number: Tensor
    place: Tensor
    mean: Tensor
    std: Tensor
    marked: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """``(n, F) -> (n, d)``."""
        cells = inputs.to(torch.float64).index_select(1, self.source)
        numbers = (cells - self.mean) / self.std
        encoded = torch.where(self.is_number, numbers, (cells == self.place).to(torch.float64))
        encoded = torch.where(torch.isnan(cells), torch.zeros_like(encoded), encoded)
        if len(self.marked) == 0:
            return encoded.to(torch.float32)
        marks = torch.isnan(inputs.index_select(1, self.marked)).to(torch.float32)
        return torch.cat([encoded.to(torch.float32), marks], dim=1)


class Normalised(nn.Module):
    """Stored values ``x`` to ``(x * scale - mean) / std`` in float32, as ``ClientData`` does batch by batch."""

    def __init__(self, scale: float, mean: Sequence[float], std: Sequence[float], dimensions: int) -> None:
        super().__init__()
        shape = (-1, *[1] * (dimensions - 1))
        self.scale = scale
        self.normal = len(mean) > 0
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64).reshape(shape).float())
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64).reshape(shape).float())

    mean: Tensor
    std: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """``(n, *shape) -> (n, *shape)``."""
        x = inputs.to(torch.float32)
        if self.scale != 1.0:
            x = x * self.scale
        return (x - self.mean) / self.std if self.normal else x


class Mixture(nn.Module):
    """Several candidates whose outputs, or probabilities, are averaged with fixed weights."""

    def __init__(self, candidates: Sequence[nn.Module], weights: Sequence[float], *, probabilities: bool) -> None:
        super().__init__()
        self.candidates = nn.ModuleList(candidates)
        self.probabilities = probabilities
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

    weights: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """``(n, *shape) -> (n, C)``."""
        total = torch.zeros(())
        for number, candidate in enumerate(self.candidates):
            outputs = candidate(inputs)
            if self.probabilities:
                outputs = outputs.softmax(-1)
            total = total + self.weights[number].to(outputs.dtype) * outputs
        return total


class Units(nn.Module):
    """Standardised predictions ``(n, t)`` to values in the unit that the targets came in."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64))

    mean: Tensor
    std: Tensor

    def forward(self, outputs: Tensor) -> Tensor:
        """``(n, t) -> (n, t)``."""
        return outputs * self.std.to(outputs.dtype) + self.mean.to(outputs.dtype)


class Served(nn.Module):
    """Inputs as they are stored in; probabilities, logits or values out."""

    def __init__(
        self, stages: Sequence[nn.Module], model: nn.Module, units: Units | None, *, dtype: torch.dtype, last: str
    ) -> None:
        super().__init__()
        self.stages, self.model = nn.Sequential(*stages), model
        self.units = nn.Identity() if units is None else units
        self.dtype, self.last = dtype, last

    def forward(self, inputs: Tensor) -> Tensor:
        """``(n, *raw shape) -> (n, C)``."""
        outputs: Tensor = self.units(self.model(self.stages(inputs).to(self.dtype)))
        if self.last == "softmax":
            return outputs.softmax(-1)
        return outputs.log() if self.last == "log" else outputs


def served(
    model: nn.Module,
    inputs: Mapping[str, Any],
    features: Sequence[Feature] | None,
    *,
    units: Units | None,
    task: str,
    logits: bool,
    dtype: torch.dtype,
) -> Served:
    """The whole way from a stored input to the answer, in evaluation mode.

    Parameters
    ----------
    model : nn.Module
        The client's model or `Mixture`.
    inputs : mapping
        ``shape``, ``scale`` and, where inputs are normalised, ``mean`` and ``std``.
    features : sequence of Feature, optional
        The columns of a table, where the inputs are one.
    units : Units, optional
        Of a regression that has learnt standardised targets.
    task : str
        ``classification`` or ``regression``.
    logits : bool
        Give what softmax makes the probabilities of.
    dtype : torch.dtype
        That of the model's parameters.
    """
    stages: list[nn.Module] = [] if features is None else [TableInputs(features)]
    normalised = Normalised(
        inputs.get("scale", 1.0), inputs.get("mean", ()), inputs.get("std", ()), len(inputs["shape"])
    )
    averaged = isinstance(model, Mixture) and model.probabilities
    last = "none"
    if task == "classification":
        last = ("log" if averaged else "none") if logits else ("none" if averaged else "softmax")
    return Served([*stages, normalised], model, units, dtype=dtype, last=last).eval()
