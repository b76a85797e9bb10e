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


def uniform(key: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1) from ``key: ()`` and the positions ``0 .. count - 1``: ``(count,)`` float64."""
    counter = torch.arange(count, device=key.device, dtype=torch.int64)
    bits = mix(mix(counter + 1) ^ key)
    return (bits & _MASK).to(torch.float64) / float(2**63)


class KeyedDropout(nn.Module):
    """Dropout in the place of ``torch.nn.Dropout``; its key is handed in as a buffer at each step.

    ``channels`` says that whole channels are dropped, as by ``torch.nn.Dropout1d`` to ``Dropout3d``.
    """

    dropout_key: Tensor

    def __init__(self, p: float, number: int, channels: bool = False) -> None:
        super().__init__()
        self.p, self.channels = p, channels
        self.number = number  # two dropout layers of one model draw different masks
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Zero entries of ``x`` with probability p and rescale the others."""
        if not self.training or self.p == 0.0:
            return x
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.channels else x.shape
        draws = uniform(mix(self.dropout_key + self.number), prod(shape)).reshape(shape)
        return torch.where(draws >= self.p, x / (1.0 - self.p), torch.zeros_like(x))


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
