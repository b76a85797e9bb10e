"""Batched layers: k models' linear layers as one matrix product with contiguous weight gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coterie.models.dropout import KEY, KeyedDropout, mix, uniform

_ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Identity,
)  # fmt: skip
Layer = Callable[[Mapping[str, Tensor], Tensor], Tensor]


class _StackedLinear(torch.autograd.Function):
    """``y = x W^T + b`` for k models; the gradient of W comes out contiguous, which the update step needs."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(inputs, weight)
        transposed = weight.transpose(1, 2)
        if bias is None:
            return torch.bmm(inputs, transposed)
        return torch.baddbmm(bias.unsqueeze(1), inputs, transposed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if needs_inputs else None,
            torch.bmm(gradient.transpose(1, 2), inputs) if needs_weight else None,
            gradient.sum(1) if needs_bias else None,
        )


class StackedLayers:
    """A sequence of layers on inputs ``(k, B, ...)``."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def __call__(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Outputs ``(k, B, ...)``."""
        for layer in self.layers:
            inputs = layer(tensors, inputs)
        return inputs


def stacked_layers(module: nn.Module) -> StackedLayers | None:
    """The batched form of ``module``, or None where it is not a sequence of layers that have one."""
    found = _collect(module, "")
    return None if found is None else StackedLayers(found)


def _collect(module: nn.Module, name: str) -> list[Layer] | None:
    if type(module) is nn.Sequential:
        layers: list[Layer] = []
        for child_name, child in module.named_children():
            inner = _collect(child, f"{name}.{child_name}" if name else child_name)
            if inner is None:
                return None
            layers += inner
        return layers
    if type(module) is nn.Linear:
        return [_linear(name, module.bias is not None)]
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return [lambda _, x: x.flatten(2)]
    if isinstance(module, KeyedDropout):
        return [_dropout(module, name)]
    if isinstance(module, _ELEMENTWISE):
        plain: nn.Module = type(module)(**_without_inplace(module))
        return [lambda _, x: plain(x)]
    return None


def _linear(name: str, has_bias: bool) -> Layer:
    def layer(tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        weight = tensors[f"{name}.weight"]
        bias = tensors[f"{name}.bias"] if has_bias else None
        flat = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        output: Tensor = _StackedLinear.apply(flat, weight, bias)  # type: ignore[no-untyped-call]
        return output.view(*inputs.shape[:-1], output.shape[-1])

    return layer


def _dropout(module: KeyedDropout, name: str) -> Layer:
    def layer(tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        if not module.training or module.p == 0.0:
            return inputs
        keys = mix(tensors[f"{name}.{KEY}"] + module.number)
        draws = torch.vmap(lambda key: uniform(key, inputs[0].numel()))(keys).view(inputs.shape)
        return torch.where(draws >= module.p, inputs / (1.0 - module.p), torch.zeros_like(inputs))

    return layer


def _without_inplace(module: nn.Module) -> dict[str, Any]:
    """The constructor arguments of an activation, in its out-of-place form."""
    names = {"negative_slope", "alpha", "approximate", "beta", "threshold", "min_val", "max_val"}
    return {name: value for name, value in vars(module).items() if name in names}
