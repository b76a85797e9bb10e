"""Batched layers, forwards and backwards: k models' linear layers are one matrix product each.

The backward pass is written out, layer by layer, because small models are limited by everything but the arithmetic:
autograd's bookkeeping alone costs a third of a step of ten examples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from coterie.models.dropout import KEY, KeyedDropout, mask_keys, uniform

_ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Hardtanh, nn.Identity,
)  # fmt: skip
Tensors = Mapping[str, Tensor]


class Sinks(Protocol):
    """Takes the gradients of the parameters ``names`` where the backward pass finds them.

    Each parameter has its turn once, after the backward pass has read it for the last time: a sink may change it.
    """

    @property
    def names(self) -> Container[str]:
        """What has a gradient."""

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        """The gradient of the weights ``name`` is ``left @ right``: ``(k, out, B)`` and ``(k, B, in)``."""

    def plain(self, name: str, gradient: Tensor) -> None:
        """The gradient of ``name``, ``(k, *shape)``."""


class Layer(Protocol):
    """One layer of k models on inputs ``(k, B, ...)``."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters."""

    def forward(self, tensors: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The outputs, and what the way back needs."""

    def backward(
        self, tensors: Tensors, kept: Tensor | None, gradient: Tensor, sinks: Sinks, deeper: bool
    ) -> Tensor | None:
        """From the gradient of the outputs that of the inputs, where any layer ``deeper`` wants it."""


class Linear:
    """``y = x W^T + b``."""

    def __init__(self, prefix: str, bias: bool) -> None:
        self.weight, self.bias = f"{prefix}weight", f"{prefix}bias" if bias else None
        self.names = (self.weight,) if self.bias is None else (self.weight, self.bias)

    def forward(self, tensors: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """One product for all models: ``(k, B, ..., in)`` to ``(k, B, ..., out)``."""
        flat = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        transposed = tensors[self.weight].transpose(1, 2)
        if self.bias is None:
            outputs = torch.bmm(flat, transposed)
        else:
            outputs = torch.baddbmm(tensors[self.bias].unsqueeze(1), flat, transposed)
        return outputs.view(*inputs.shape[:-1], outputs.shape[-1]), inputs

    def backward(
        self, tensors: Tensors, kept: Tensor | None, gradient: Tensor, sinks: Sinks, deeper: bool
    ) -> Tensor | None:
        """``dX = dY W``, before the sink may change W; ``dW = dY^T X``; ``db`` is the sum over examples."""
        assert kept is not None
        of_outputs = gradient.reshape(len(gradient), -1, gradient.shape[-1])
        of_inputs = torch.bmm(of_outputs, tensors[self.weight]).view(kept.shape) if deeper else None
        if self.weight in sinks.names:
            inputs = kept.reshape(len(kept), -1, kept.shape[-1])
            sinks.product(self.weight, of_outputs.transpose(1, 2), inputs)
        if self.bias is not None and self.bias in sinks.names:
            sinks.plain(self.bias, of_outputs.sum(1))
        return of_inputs


class Elementwise:
    """A function of each number for itself."""

    names: tuple[str, ...] = ()

    def __init__(self, module: nn.Module) -> None:
        self.function = copy.deepcopy(module)
        vars(self.function)["inplace"] = False

    def forward(self, tensors: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The function's values."""
        return self.function(inputs), inputs

    def backward(
        self, tensors: Tensors, kept: Tensor | None, gradient: Tensor, sinks: Sinks, deeper: bool
    ) -> Tensor | None:
        """Its slope, by autograd of this layer alone."""
        assert kept is not None
        with torch.enable_grad():
            inputs = kept.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.function(inputs), inputs, gradient)
        return slope


class Rectifier(Elementwise):
    """ReLU, whose outputs tell where it has a slope."""

    def forward(self, tensors: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """``max(x, 0)``."""
        outputs = torch.relu(inputs)
        return outputs, outputs

    def backward(
        self, tensors: Tensors, kept: Tensor | None, gradient: Tensor, sinks: Sinks, deeper: bool
    ) -> Tensor | None:
        """The gradient where the output is above zero."""
        slope: Tensor = torch.ops.aten.threshold_backward(gradient, kept, 0.0)
        return slope


class Flatten:
    """``(k, B, ...)`` to ``(k, B, features)``."""

    names: tuple[str, ...] = ()

    def forward(self, tensors: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same numbers in one row an example."""
        return inputs.flatten(2), inputs

    def backward(
        self, tensors: Tensors, kept: Tensor | None, gradient: Tensor, sinks: Sinks, deeper: bool
    ) -> Tensor | None:
        """The same numbers in the shape they came in."""
        assert kept is not None
        return gradient.reshape(kept.shape)


class Dropout:
    """Zeroes entries by the key of each model; without keys (evaluation) it does nothing."""

    names: tuple[str, ...] = ()

    def __init__(self, module: KeyedDropout, name: str) -> None:
        self.key, self.number, self.p = f"{name}.{KEY}", module.number, module.p
        self.call = 0  # which one of a pass this is, where the module stands in several places

    def forward(self, tensors: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Zero with probability p, and the others divided by 1 - p; what stays is kept for the way back."""
        if self.key not in tensors or self.p == 0.0:
            return inputs, None
        keys = mask_keys(tensors[self.key], self.number, self.call)
        stay = torch.vmap(lambda key: uniform(key, inputs[0].numel()))(keys).view(inputs.shape) >= self.p
        return self._thinned(inputs, stay), stay

    def backward(
        self, tensors: Tensors, kept: Tensor | None, gradient: Tensor, sinks: Sinks, deeper: bool
    ) -> Tensor | None:
        """The same thinning."""
        return gradient if kept is None else self._thinned(gradient, kept)

    def _thinned(self, values: Tensor, stay: Tensor) -> Tensor:
        return torch.where(stay, values / (1.0 - self.p), torch.zeros_like(values))


class StackedLayers:
    """A sequence of layers on inputs ``(k, B, ...)``."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def __call__(self, tensors: Tensors, inputs: Tensor) -> Tensor:
        """Outputs ``(k, B, ...)``."""
        for layer in self.layers:
            inputs, _ = layer.forward(tensors, inputs)
        return inputs

    @torch.no_grad()
    def traced(self, tensors: Tensors, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor, Sinks], None]]:
        """Outputs ``(k, B, ...)``, and the way back: from their gradient to those of the parameters, into sinks."""
        way: list[tuple[Layer, Tensor | None]] = []
        for layer in self.layers:
            inputs, kept = layer.forward(tensors, inputs)
            way.append((layer, kept))

        @torch.no_grad()
        def back(gradient: Tensor, sinks: Sinks) -> None:
            wanted = [any(name in sinks.names for name in layer.names) for layer, _ in way]
            lowest = wanted.index(True) if True in wanted else len(way)
            following: Tensor | None = gradient
            for place in range(len(way) - 1, lowest - 1, -1):
                assert following is not None
                layer, kept = way[place]
                following = layer.backward(tensors, kept, following, sinks, place > lowest)

        return inputs, back


def stacked_layers(module: nn.Module) -> StackedLayers | None:
    """The batched form of ``module``, or None where it is not a sequence of layers that have one."""
    if len(list(module.parameters())) != len(list(module.named_parameters(remove_duplicate=False))):
        return None  # layers that share their weights have one name for two places
    found = _collect(module, "")
    if found is None:
        return None
    places: dict[int, list[Dropout]] = {}
    for layer in found:
        if isinstance(layer, Dropout):  # a block of layers may stand in several places; its key has the first's name
            same = places.setdefault(layer.number, [])
            layer.key, layer.call = (same[0].key if same else layer.key), len(same)
            same.append(layer)
    return StackedLayers(found)


def _collect(module: nn.Module, name: str) -> list[Layer] | None:
    if module._forward_pre_hooks or module._forward_hooks:  # they may change weights or values
        return None
    if type(module) is nn.Sequential:
        layers: list[Layer] = []
        for child_name, child in module._modules.items():  # one activation may stand in two places
            assert child is not None
            inner = _collect(child, f"{name}.{child_name}" if name else child_name)
            if inner is None:
                return None
            layers += inner
        return layers
    if type(module) is nn.Linear:
        return [Linear(f"{name}." if name else "", module.bias is not None)]
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return [Flatten()]
    if isinstance(module, KeyedDropout) and not module.channels:
        return [Dropout(module, name)]
    if type(module) is nn.ReLU:
        return [Rectifier(module)]
    if type(module) in _ELEMENTWISE:
        return [Elementwise(module)]
    return None
