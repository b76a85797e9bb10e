"""Dropout whose masks depend on keys and positions only, so that every executor draws the same ones."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

_MASK = 0x7FFFFFFFFFFFFFFF
KEY = "dropout_key"
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def mix(value: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64 tensors of any shape (wrapping arithmetic): well-mixed bits."""
    value = (value ^ ((value >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    value = (value ^ ((value >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return value ^ ((value >> 31) & 0x1FFFFFFFF)


def step_keys(keys: Tensor, step: int) -> Tensor:
    """The dropout keys of one training step from those of a local training, of any shape, int64."""
    return mix(keys + step + 1)


def mask_keys(keys: Tensor, number: int, call: int) -> Tensor:
    """The keys of the mask that layer ``number`` draws in its ``call``, from 0 on, by those of a step, of any shape."""
    own = mix(keys + number)
    return mix(own + call) if call else own


def uniform(key: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1) from ``key: ()`` and the positions ``0 .. count - 1``: ``(count,)`` float64."""
    counter = torch.arange(count, device=key.device, dtype=torch.int64)
    bits = mix(mix(counter + 1) ^ key)
    return (bits & _MASK).to(torch.float64) / float(2**63)


class KeyedDropout(nn.Module):
    """Dropout in the place of ``torch.nn.Dropout``; its key is handed in as a buffer at each step.

    ``channels`` says that whole channels are dropped, as by ``torch.nn.Dropout1d`` to ``Dropout3d``. A layer that is
    called several times in a forward pass draws another mask each time, where `count_calls` sees to it.
    """

    dropout_key: Tensor

    def __init__(self, p: float, number: int, channels: bool = False) -> None:
        super().__init__()
        self.p, self.channels = p, channels
        self.number = number  # two dropout layers of one model draw different masks
        self.calls: int | None = None  # in the forward pass that is going on
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Zero entries of ``x`` with probability p and rescale the others."""
        if not self.training or self.p == 0.0:
            return x
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.channels else x.shape
        draws = uniform(mask_keys(self.dropout_key, self.number, self.calls or 0), prod(shape)).reshape(shape)
        if self.calls is not None:
            self.calls += 1
        return torch.where(draws >= self.p, x / (1.0 - self.p), torch.zeros_like(x))


def count_calls(module: nn.Module) -> None:
    """Let the dropout layers of ``module`` count their calls in each of its forward passes.

    Outside they do not: what is computed once more on the way back (``torch.utils.checkpoint``) draws as a first call.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, KeyedDropout)]

    def set_calls(calls: int | None) -> None:
        for layer in layers:
            layer.calls = calls

    if layers:
        module.register_forward_pre_hook(lambda *_: set_calls(0))
        module.register_forward_hook(lambda *_: set_calls(None), always_call=True)


def replace_dropout(module: nn.Module) -> list[str]:
    """Replace every dropout layer below ``module``, in place; the names of their key buffers, in order."""
    names: list[str] = []
    for name in [name for name, _ in module.named_modules(remove_duplicate=False)]:
        child = module.get_submodule(name)
        if isinstance(child, _DROPOUTS):
            parent_name, _, leaf = name.rpartition(".")
            keyed = KeyedDropout(child.p, len(names), channels=not isinstance(child, nn.Dropout))
            setattr(module.get_submodule(parent_name), leaf, keyed)
            names.append(f"{name}.{KEY}")
    return names
