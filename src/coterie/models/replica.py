"""One module that holds one client's model after another: for networks that gain nothing from stacking."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.models.dropout import count_calls


class Replica:
    """A copy of ``module`` whose tensors are those of any row of Theta: what trains it, trains the row.

    Nothing is copied: the module's parameters and buffers *are* the row's, so that an optimiser's step in place
    stays. Pictures are handed over with their channels last, which the convolutions of a CPU read faster. The buffers
    ``assigned`` are those that a forward pass replaces by other tensors: it works on a copy, and in training the row
    takes the last.
    """

    def __init__(self, module: nn.Module, assigned: Sequence[str] = ()) -> None:
        self.module, self._assigned = copy.deepcopy(module), tuple(assigned)
        count_calls(self.module)
        self._parameters = dict(self.module.named_parameters())
        self._held = {**self._parameters, **dict(self.module.named_buffers())}

    def prepare(self, train: bool, names: Sequence[str]) -> list[Tensor]:
        """Set the mode and what has a gradient: the parameters ``names``, which are returned."""
        set_mode(self.module, train)
        wanted = set(names)
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in wanted)
        return [self._parameters[name] for name in names]

    def show(self, tensors: Mapping[str, Tensor], row: int) -> None:
        """Be row ``row`` of ``tensors: (k, *shape)``."""
        for name, tensor in tensors.items():
            self._held[name].data = tensor[row]

    def key(self, names: Sequence[str], key: Tensor) -> None:
        """Let the dropout layers draw from ``key: ()``."""
        for name in names:
            self._held[name].data = key

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs ``(B, ...)`` of ``inputs: (B, *features)``."""
        for name in self._assigned:  # the way back may read what was here before
            _put(self.module, name, self._held[name].clone())
        with explained():
            output: Tensor = self.module(channels_last(inputs))
        for name in self._assigned if self.module.training else ():
            self._held[name].copy_(self.module.get_buffer(name).detach())
        return output


def _put(module: nn.Module, name: str, buffer: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, buffer)


def set_mode(module: nn.Module, train: bool) -> None:
    """Training or evaluation mode."""
    for layer in module.train(train).modules():
        # without dropout it is alike in both modes, but cuDNN has gradients in training mode only
        if isinstance(layer, nn.RNNBase) and not layer.dropout:
            layer.training = True


def channels_last(inputs: Tensor) -> Tensor:
    """Pictures ``(B, C, H, W)`` with the channels last in memory; anything else as it is."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


@contextmanager
def explained() -> Iterator[None]:
    """Say what a batch of one example means where a layer refuses it."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise CoterieError(
            "batch normalisation cannot train on a batch of one example, which a client's last batch is here; "
            "set training.drop_last or another training.batch_size, or leave out clients with one example"
        ) from error
