"""Pictures of another size, for networks that were made for other data."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import interpolate

from coterie.errors import CoterieError
from coterie.federation.examples import Examples

AT_ONCE = 4096  # pictures whose floating-point copies are in memory together


def resized(examples: Examples, size: int | None) -> Examples:
    """Pictures ``(N, channels, height, width)`` as ``(N, channels, size, size)``, bilinear; None leaves them alone.

    Raises:
        CoterieError: the inputs are no pictures.
    """
    if size is None or tuple(examples.inputs.shape[2:]) == (size, size):
        return examples
    if examples.inputs.ndim != 4:
        raise CoterieError(
            f"federation.resize changes pictures, but inputs of {examples.name!r} have the shape "
            f"{tuple(examples.inputs.shape[1:])}: leave it out."
        )
    kind = examples.inputs.dtype
    parts = []
    for part in torch.split(examples.inputs, AT_ONCE):
        scaled = interpolate(part.float(), (size, size), mode="bilinear", antialias=True)
        parts.append(scaled if kind.is_floating_point else scaled.round().clamp(0, 255).to(kind))
    return replace(examples, inputs=torch.cat(parts))
