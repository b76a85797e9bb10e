"""Batched layers: k models' linear layers as one matrix product with contiguous weight gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coterie.models.dropout import KEY, KeyedDropout, mix, uniform

_ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Hardtanh, nn.Identity,
)  # fmt: skip
Layer = Callable[[Mapping[str, Tensor], Tensor, "Sinks | None"], Tensor]


class Sinks(Protocol):
    """Takes the weight gradients where the backward pass makes them, so that they are never stored.

    Each weight has its turn once, after the backward pass has read it for the last time: a sink may change it.
    """

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        """The gradient of the weights ``name`` is ``left @ right``: ``(a, out, B)`` and ``(a, B, in)``."""

    def plain(self, name: str, gradient: Tensor) -> None:
        """The gradient of ``name``, ``(a, *shape)``."""


class _StackedLinear(torch.autograd.Function):
    """``y = x W^T + b`` for k models; the gradient of W comes out contiguous, or goes into the sinks."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, sinks: Sinks | None, prefix: str
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.sinks, ctx.prefix = sinks, prefix
        transposed = weight.transpose(1, 2)
        if bias is None:
            return torch.bmm(inputs, transposed)
        return torch.baddbmm(bias.unsqueeze(1), inputs, transposed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_inputs = torch.bmm(gradient, weight) if needs_inputs else None
        if ctx.sinks is None:
            of_weight = torch.bmm(gradient.transpose(1, 2), inputs) if needs_weight else None
            return of_inputs, of_weight, gradient.sum(1) if needs_bias else None, None, None
        if needs_weight:
            ctx.sinks.product(f"{ctx.prefix}weight", gradient.transpose(1, 2), inputs)
        if needs_bias:
            ctx.sinks.plain(f"{ctx.prefix}bias", gradient.sum(1))
        return of_inputs, None, None, None, None


class StackedLayers:
    """A sequence of layers on inputs ``(k, B, ...)``."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def __call__(self, tensors: Mapping[str, Tensor], inputs: Tensor, sinks: Sinks | None = None) -> Tensor:
        """Outputs ``(k, B, ...)``."""
        for layer in self.layers:
            inputs = layer(tensors, inputs, sinks)
        return inputs


def stacked_layers(module: nn.Module) -> StackedLayers | None:
    """The batched form of ``module``, or None where it is not a sequence of layers that have one."""
    if len(list(module.parameters())) != len(list(module.named_parameters(remove_duplicate=False))):
        return None  # layers that share their weights have one name for two places
    found = _collect(module, "")
    return None if found is None else StackedLayers(found)


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
        return [_linear(f"{name}." if name else "", module.bias is not None)]
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return [lambda _, x, __: x.flatten(2)]
    if isinstance(module, KeyedDropout) and not module.channels:
        return [_dropout(module, name)]
    if type(module) in _ELEMENTWISE:
        plain = copy.deepcopy(module)
        vars(plain)["inplace"] = False
        return [lambda _, x, __: plain(x)]
    return None


def _linear(prefix: str, has_bias: bool) -> Layer:
    def layer(tensors: Mapping[str, Tensor], inputs: Tensor, sinks: Sinks | None) -> Tensor:
        weight = tensors[f"{prefix}weight"]
        bias = tensors[f"{prefix}bias"] if has_bias else None
        flat = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        apply: Callable[..., Tensor] = _StackedLinear.apply
        output = apply(flat, weight, bias, sinks, prefix)
        return output.view(*inputs.shape[:-1], output.shape[-1])

    return layer


def _dropout(module: KeyedDropout, name: str) -> Layer:
    def layer(tensors: Mapping[str, Tensor], inputs: Tensor, sinks: Sinks | None) -> Tensor:
        if f"{name}.{KEY}" not in tensors or module.p == 0.0:  # evaluation
            return inputs
        keys = mix(tensors[f"{name}.{KEY}"] + module.number)
        draws = torch.vmap(lambda key: uniform(key, inputs[0].numel()))(keys).view(inputs.shape)
        return torch.where(draws >= module.p, inputs / (1.0 - module.p), torch.zeros_like(inputs))

    return layer
