"""How many numbers the layers of a model make of one example, by which evaluation chooses its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from coterie.models.culprit import watched


@contextmanager
def widths(module: nn.Module) -> Iterator[list[int]]:
    """The entries of what each layer gives back for its whole batch, in the order of computation."""
    made: list[int] = []

    def leave(output: object) -> None:
        outputs = output if isinstance(output, tuple) else (output,)  # recurrent layers give their state as well
        made.extend(tensor.numel() for tensor in outputs if isinstance(tensor, Tensor))

    with watched(module, None, leave):
        yield made
