"""The papers' networks side by side: the stack against a plain loop over torch modules, in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.models import Stack, build_model, module_of
from coterie.models.resnet import BasicBlock

EXACT = {"rtol": 1e-10, "atol": 1e-12}
Case = tuple[str, tuple[int, ...], dict[str, Any]]
CASES: list[Case] = [
    ("mlp", (6,), {"hidden": [5, 4]}),
    ("fedora-cnn", (1, 16, 16), {}),
    ("feddwa-cnn", (3, 12, 12), {"dropout": 0.0}),
    ("feddwa-emnist-cnn", (1, 16, 16), {}),
    ("pgfed-cnn", (1, 16, 16), {}),
    ("federico-cnn", (1, 8, 8), {}),
    ("federico-cnn", (1, 22, 22), {"padding": 0}),
    ("resnet8", (3, 8, 8), {"widths": [4, 6, 8]}),
    ("resnet18", (3, 8, 8), {"widths": [3, 4, 5, 6]}),
    ("resnet18", (1, 16, 16), {"widths": [3, 4], "stem": "imagenet"}),
]


def stack_of(case: Case, executor: Any) -> Stack:
    name, shape, options = case
    return Stack(lambda: build_model(name, shape, 3, **options), shape, executor=executor, dtype=torch.float64)


def inputs_for(case: Case, k: int, size: int) -> Tensor:
    return torch.randn(k, size, *case[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_three_steps_are_those_of_plain_modules(case: Case, executor: str) -> None:
    """Outputs, gradients, weights and batch statistics, with batches of different sizes."""
    stack = stack_of(case, executor)
    rows = stack.initial(0, 2, distinct=True).clone()
    modules = [module_of(stack, rows, row).train() for row in range(2)]
    sizes = torch.tensor([4, 3])
    for step in range(3):
        inputs = inputs_for(case, 2, 4) + step
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in rows.parameters()}
        outputs = stack.forward({**rows.tensors, **leaves}, inputs, train=True, sizes=sizes, keys=torch.arange(2))
        loss = sum(outputs[row, :n].square().mean() for row, n in enumerate(sizes.tolist()))
        gradients = torch.autograd.grad(loss, list(leaves.values()))  # type: ignore[arg-type]
        for row, (module, n) in enumerate(zip(modules, sizes.tolist(), strict=True)):
            expected = module(inputs[row, :n])
            torch.testing.assert_close(outputs[row, :n], expected, **EXACT)
            module.zero_grad()
            expected.square().mean().backward()
            for (name, parameter), gradient in zip(module.named_parameters(), gradients, strict=True):
                torch.testing.assert_close(gradient[row], parameter.grad, **EXACT, msg=f"{name}, row {row}")
                with torch.no_grad():
                    parameter -= 0.01 * parameter.grad  # type: ignore[operator]
        with torch.no_grad():
            for (name, _), gradient in zip(leaves.items(), gradients, strict=True):
                rows.tensors[name] -= 0.01 * gradient
    for row, module in enumerate(modules):
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(rows.tensors[name][row], tensor, **EXACT, msg=f"{name}, row {row}")
        inputs = inputs_for(case, 2, 5)
        torch.testing.assert_close(stack.forward(rows.tensors, inputs)[row], module.eval()(inputs[row]), **EXACT)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_dropout_of_feddwa_is_keyed() -> None:
    """The same masks by either executor, half of the hidden units; none in evaluation."""
    case: Case = ("feddwa-cnn", (1, 10, 10), {})
    vmap, loop = stack_of(case, "vmap"), stack_of(case, "loop")
    rows, inputs, keys = vmap.initial(0, 2, distinct=True), inputs_for(case, 2, 4), torch.tensor([3, 4])
    one, other = (stack.forward(rows.clone().tensors, inputs, train=True, keys=keys) for stack in (vmap, loop))
    torch.testing.assert_close(one, other, **EXACT)
    assert not torch.equal(one, vmap.forward(rows.clone().tensors, inputs, train=True, keys=keys + 9))
    torch.testing.assert_close(
        vmap.forward(rows.tensors, inputs)[1], module_of(vmap, rows, 1).eval()(inputs[1]), **EXACT
    )
    dropped = [layer.p for layer in build_model(*case[:2], 3).modules() if isinstance(layer, nn.Dropout)]
    assert dropped == [0.5]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_head_is_the_last_linear_layer(case: Case) -> None:
    stack = stack_of(case, "loop")
    linear = [name for name, layer in stack.module.named_modules() if isinstance(layer, nn.Linear)]
    assert stack.head == linear[-1]
    assert stack.layout.head == {f"{linear[-1]}.weight", f"{linear[-1]}.bias"}
    rows, inputs = stack.initial(0, 2, distinct=True), inputs_for(case, 2, 3)
    features = stack.features(rows.tensors, inputs)
    head = module_of(stack, rows, 1).get_submodule(stack.head)
    torch.testing.assert_close(head(features[1]), stack.forward(rows.tensors, inputs)[1], **EXACT)


def test_order_of_the_layers() -> None:
    def kinds(name: str, **options: Any) -> list[str]:
        return [type(layer).__name__ for layer in build_model(name, (3, 32, 32), 10, **options).children()]

    convolution = ["Conv2d", "ReLU", "MaxPool2d", "BatchNorm2d"]
    assert kinds("feddwa-cnn") == [*convolution, *convolution, "Flatten", "Linear", "Dropout", "ReLU", "Linear"]
    assert kinds("federico-cnn") == [*["Conv2d", "MaxPool2d", "ReLU"] * 3, "Flatten", "Linear"]
    stem = ["Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds("resnet8") == [*stem, "MaxPool2d", *["BasicBlock"] * 3, "Mean", "Linear"]
    assert kinds("resnet18") == [*stem, *["BasicBlock"] * 8, "Mean", "Linear"]


@pytest.mark.parametrize(("stem", "side"), [("cifar", 32), ("pooled", 16), ("imagenet", 8)])
def test_stems(stem: str, side: int) -> None:
    network = build_model("resnet18", (3, 32, 32), 10, stem=stem).eval()
    assert isinstance(network, nn.Sequential)
    first = next(index for index, layer in enumerate(network) if isinstance(layer, BasicBlock))
    assert tuple(network[:first](torch.zeros(1, 3, 32, 32)).shape) == (1, 64, side, side)
    assert tuple(network[:-2](torch.zeros(1, 3, 32, 32)).shape) == (1, 512, side // 8, side // 8)


def test_a_block_by_hand() -> None:
    """With its last scale at zero a block is its shortcut: the identity, or a strided 1x1 convolution."""
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    same, down = BasicBlock(3, 3, 1).eval(), BasicBlock(3, 5, 2).eval()
    for block in (same, down):
        nn.init.zeros_(block.residual[-1].weight)
    assert torch.equal(same(x), x.relu())
    weight = down.shortcut[0].weight[:, :, 0, 0]  # type: ignore[index]
    expected = torch.einsum("oi,bihw->bohw", weight, x[:, :, ::2, ::2]) / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(down(x), expected.relu())
