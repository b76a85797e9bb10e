"""Whether a model sees the padding behind a batch: then clients of other sizes beside it would change its training."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from coterie.models.dropout import KeyedDropout

_EXAMPLES = 3


def sees_padding(module: nn.Module, feature_shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether padding changes what ``module`` gives for the examples before it, or what its saved buffers keep of them.

    Layers that mix examples do so, and so does dropout where the batch is not the first axis: its masks are numbered
    over all axes. ``module``, on the CPU and with keyed dropout, stays. One that takes none of the inputs tried is
    said to see padding, which costs time and nothing else.
    """
    draw = torch.Generator().manual_seed(0)
    module = copy.deepcopy(module).train()
    for parameter in module.parameters():  # weights that begin as zeros would hide what follows them
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=draw).to(parameter.dtype)
    for layer in module.modules():
        if isinstance(layer, KeyedDropout) and layer.p:
            layer.p = 0.5  # another mask is sure to show
    found = [_seen(module, inputs.to(dtype)) for inputs in _inputs(module, feature_shape, draw)]
    tried = [seen for seen in found if seen is not None]
    return any(tried) or not tried


def _inputs(module: nn.Module, feature_shape: tuple[int, ...], draw: torch.Generator) -> Iterator[Tensor]:
    """Examples of measurements, and of codes."""
    yield torch.randn(_EXAMPLES, *feature_shape, generator=draw)
    yield torch.randint(int(getattr(module, "codes", 2)), (_EXAMPLES, *feature_shape), generator=draw)


@torch.no_grad()
def _seen(module: nn.Module, inputs: Tensor) -> bool | None:
    """Whether padding shows behind these inputs; None where the module cannot take them."""
    try:
        alone, padded = (
            _traces(copy.deepcopy(module), batch) for batch in (inputs, torch.cat([inputs, inputs[:1], inputs[:1]]))
        )
    except Exception:  # whatever it is: a batch of zeros has passed
        return None
    return not all(_close(one, other) for one, other in zip(alone, padded, strict=True))


def _traces(module: nn.Module, inputs: Tensor) -> list[Tensor]:
    """What the module gives for the examples, and what it keeps of them."""
    outputs: Tensor = module(inputs)[:_EXAMPLES]
    return [outputs, *(buffer for name, buffer in module.named_buffers() if name in module.state_dict())]


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    if one.shape != other.shape:
        return False
    one, other = one.double(), other.double()
    tolerance = float(torch.finfo(torch.float32).eps ** 0.5) * float(one.abs().nan_to_num().max() if one.numel() else 0)
    return torch.allclose(one, other, rtol=0.0, atol=tolerance, equal_nan=True)
