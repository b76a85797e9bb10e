"""Mixed precision: gradients by products of matrices in bfloat16, everything that is kept in float32.

bfloat16 has the range of float32 and 8 bits of its mantissa, so nothing underflows and no loss is scaled. float16 would
want a scale of the loss for each client, and a step that one client leaves out while its neighbours take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeVar

import torch
from torch import Tensor

from coterie.errors import CoterieError

Precision = Literal["full", "bf16"]
Sink = TypeVar("Sink")
LOW = torch.bfloat16


def products_in(precision: Precision, dtype: torch.dtype, device: torch.device) -> torch.dtype | None:
    """What products of matrices are computed in while models of type ``dtype`` train; None: in their own type.

    Raises
    ------
    CoterieError
        The models are not float32, or the GPU has no bfloat16.
    """
    if precision == "full":
        return None
    if dtype != torch.float32:
        raise CoterieError(
            f"precision: bf16 computes products of float32 models in bfloat16, but dtype is "
            f"{str(dtype).removeprefix('torch.')}: set dtype: float32, or precision: full."
        )
    if device.type == "cuda":
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                name = torch.cuda.get_device_name(device)
                raise CoterieError(
                    f"precision: {name} does not compute in bfloat16, which NVIDIA's GPUs do since Ampere: set "
                    "precision: full."
                )
    return LOW


def forbid_short_products(device: torch.device) -> None:
    """Let float32 be float32: convolutions of NVIDIA's GPUs would round their inputs to the 10 bits of TF32.

    That is torch's default, and a setting of the process. Differences of gradients at close points need all 23 bits.
    """
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False


def autocast(low: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """torch's own mixed precision for what runs as a module; nothing for None.

    Without the cache of cast weights: it goes by the parameter, which holds another client's row a moment later.
    """
    return nullcontext() if low is None else torch.autocast(device.type, dtype=low, cache_enabled=False)


def lowered(tensors: Mapping[str, Tensor], low: torch.dtype) -> dict[str, Tensor]:
    """Copies of the floating-point ``tensors`` in ``low``; others as they are."""
    return {name: tensor.to(low) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def raised(
    outputs: Tensor, back: Callable[[Tensor, Sink], None], dtype: torch.dtype
) -> tuple[Tensor, Callable[[Tensor, Sink], None]]:
    """``outputs`` of a lower precision in ``dtype``, and the way ``back`` for gradients of that type."""
    low = outputs.dtype
    return outputs.to(dtype), lambda gradient, sinks: back(gradient.to(low), sinks)
