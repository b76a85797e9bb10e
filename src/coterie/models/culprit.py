"""Which layer of a model stands in the way, for messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from coterie.models.layers import stacked_layers


def named(module: nn.Module, name: str) -> str:
    """A layer as messages call it: ``layer 'gru' (GRU)``, and a model's own forward by its class."""
    kind = type(module.get_submodule(name)).__name__
    return f"layer '{name}' ({kind})" if name else f"the forward pass of {kind} itself"


@contextmanager
def at_work(module: nn.Module) -> Iterator[list[str]]:
    """The names of the layers that are being computed, the innermost last; an error leaves the list as it is."""
    active: list[str] = []

    def enter(name: str) -> None:
        active.append(name)

    def leave(output: object) -> None:
        active.pop()

    with watched(module, enter, leave):
        yield active


@contextmanager
def drawing(module: nn.Module) -> Iterator[list[str]]:
    """The names of the layers in which torch's generator on the CPU moved, inner ones before those around them."""
    before: list[tuple[str, Tensor]] = []
    drew: list[str] = []

    def enter(name: str) -> None:
        before.append((name, torch.get_rng_state()))

    def leave(output: object) -> None:
        name, state = before.pop()
        if not torch.equal(state, torch.get_rng_state()):
            drew.append(name)

    with watched(module, enter, leave):
        yield drew


def not_stackable(module: nn.Module) -> str:
    """The first layer that has no batched form of its own; the model itself where it is no sequence of layers."""
    for name, child in module.named_modules():
        if name and not list(child.children()) and stacked_layers(child) is None:
            return named(module, name)
    return named(module, "")


def first_of(module: nn.Module, *kinds: type[nn.Module]) -> str | None:
    """The first layer of one of these kinds, as messages call it."""
    return next((named(module, name) for name, child in module.named_modules() if isinstance(child, kinds)), None)


@contextmanager
def watched(module: nn.Module, enter: Callable[[str], None] | None, leave: Callable[[object], None]) -> Iterator[None]:
    """Tells the name of each layer whose computation begins, and what each gives back."""
    handles = []
    for name, layer in module.named_modules():
        if enter is not None:
            handles.append(layer.register_forward_pre_hook(lambda layer, inputs, name=name: enter(name)))
        handles.append(layer.register_forward_hook(lambda layer, inputs, output: leave(output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
