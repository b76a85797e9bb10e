"""Any module as rows of Theta: initial rows, executors that agree, heads, features, modules back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from coterie.errors import CoterieError
from coterie.models import Models, Stack, build_model, module_of
from coterie.models.precision import forbid_short_products
from coterie.models.stack import head_name
from coterie.training import batch_gradient, squared_error

EXACT = {"rtol": 0.0, "atol": 1e-12}


class Branches(nn.Module):
    """Not a sequence: two branches, a buffer that is not saved, and a head that is not the last layer."""

    head_name = "first.out"
    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleDict({"hidden": nn.Linear(4, 5), "out": nn.Linear(5, 3)})
        self.gate = nn.Linear(4, 5)
        self.register_buffer("offset", torch.ones(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.first["out"](torch.relu(self.first["hidden"](x)) * torch.sigmoid(self.gate(x)) + self.offset)


class Random(nn.Module):
    """Dropout as a function, which no key can reach."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(nn.functional.dropout(x, 0.5, self.training))


def doubled() -> nn.Module:
    """A hook changes what a layer gives."""
    linear = nn.Linear(4, 3)
    linear.register_forward_hook(lambda module, inputs, output: 2 * output)
    return nn.Sequential(linear)


def sequence(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 6), *layers, nn.Linear(6, 3))


def stack_of(
    build: Callable[[], nn.Module], executor: Any = "auto", shape: tuple[int, ...] = (4,), **options: Any
) -> Stack:
    return Stack(build, shape, executor=executor, dtype=torch.float64, **options)


def inputs_for(stack: Stack, k: int = 3, size: int = 5) -> Tensor:
    return torch.randn(k, size, *stack.feature_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# --- initial rows ------------------------------------------------------------------------------------------------


def test_initial_rows_are_decided_by_the_seed() -> None:
    stack = stack_of(sequence(nn.ReLU()))
    torch.manual_seed(1)
    one = stack.initial(5, 3)
    torch.manual_seed(2)
    assert one.common
    assert torch.equal(one.flat(), stack.initial(5, 3).flat())
    assert not torch.equal(one.flat(), stack.initial(6, 3).flat())
    rows = stack.initial(5, 3, distinct=True)
    assert not rows.common
    assert torch.equal(rows.flat()[0], one.flat()[0])
    assert not torch.equal(rows.flat()[0], rows.flat()[1])
    assert torch.equal(stack.initial(5 + 2**63).flat(), stack.initial(5).flat())
    assert rows.dtype == torch.float64


def test_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    stack = stack_of(sequence(nn.ReLU(), nn.Dropout(0.5)))
    module_of(stack, stack.initial(0), 0)
    stack.features(stack.initial(0).tensors, inputs_for(stack, 1))
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_rows_are_those_of_the_module() -> None:
    stack = stack_of(Branches)
    torch.manual_seed(11)
    module = Branches().double()
    rows = stack.initial(11)
    assert set(rows.tensors) == set(module.state_dict())  # what is not saved is not a column
    for name, tensor in module.state_dict().items():
        assert torch.equal(rows.tensors[name][0], tensor)


# --- executors ---------------------------------------------------------------------------------------------------

ACTIVATIONS = [
    nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(0.3), nn.ELU(0.7), nn.SELU(), nn.GELU("tanh"), nn.SiLU(),
    nn.Tanh(), nn.Sigmoid(), nn.Softplus(2.0, 5.0), nn.Hardtanh(-0.3, 0.2), nn.Identity(),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_stacked_layers_keep_their_options(activation: nn.Module) -> None:
    stack, loop = stack_of(sequence(activation)), stack_of(sequence(activation), "loop")
    assert stack.executor == "stacked"
    rows, inputs = stack.initial(0, 3, distinct=True), inputs_for(stack) * 3
    torch.testing.assert_close(stack.forward(rows.tensors, inputs), loop.forward(rows.tensors, inputs), **EXACT)


def test_an_activation_in_place_leaves_the_inputs_alone() -> None:
    stack = stack_of(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)))
    inputs = inputs_for(stack)
    stack.forward(stack.initial(0, 3).tensors, inputs)
    assert torch.equal(inputs, inputs_for(stack))


BUILDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "nested": (sequence(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(6, 6, bias=False)))), (4,), "stacked"),
    "bare linear": (lambda: nn.Linear(4, 3), (4,), "stacked"),
    "empty sequence": (sequence(nn.Sequential()), (4,), "stacked"),
    "last axis": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)), (3, 4), "stacked"),
    "branches": (Branches, (4,), "vmap"),
    "layer norm": (sequence(nn.LayerNorm(6)), (4,), "vmap"),
    "prelu": (sequence(nn.PReLU()), (4,), "vmap"),
    "partial flatten": (lambda: nn.Sequential(nn.Flatten(2), nn.Linear(6, 2), nn.Flatten(), nn.Linear(4, 3)), (2, 3, 2), "vmap"),
    "batch norm": (sequence(nn.BatchNorm1d(6)), (4,), "vmap"),
    "cumulative batch norm": (sequence(nn.BatchNorm1d(6, momentum=None)), (4,), "loop"),
    "weight norm": (lambda: nn.Sequential(weight_norm(nn.Linear(4, 3))), (4,), "vmap"),
    "hook": (doubled, (4,), "vmap"),
    "convolution": (lambda: build_model("cnn", (1, 8, 8), 3, channels=[2], hidden=4), (1, 8, 8), "loop"),
    "recurrent": (lambda: build_model("gru", (4, 2), 3, hidden=5), (4, 2), "loop"),
}  # fmt: skip


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_executors_agree_and_are_chosen(name: str, train: bool) -> None:
    build, shape, expected = BUILDS[name]
    stack, loop = stack_of(build, shape=shape), stack_of(build, "loop", shape)
    assert stack.executor == expected
    rows = loop.initial(0, 3, distinct=True)
    one, other, inputs = rows.clone(), rows.clone(), inputs_for(stack)
    torch.testing.assert_close(
        stack.forward(one.tensors, inputs, train=train), loop.forward(other.tensors, inputs, train=train), **EXACT
    )
    for buffer in rows.layout.buffers:
        torch.testing.assert_close(one.tensors[buffer], other.tensors[buffer], **EXACT)
        assert train or torch.equal(one.tensors[buffer], rows.tensors[buffer])


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_batch_statistics_are_of_the_real_examples(executor: str) -> None:
    """Padding never enters them; each client has its own."""
    stack = stack_of(sequence(nn.BatchNorm1d(6)), executor)
    rows, inputs, sizes = stack.initial(0, 3, distinct=True), inputs_for(stack), torch.tensor([5, 2, 3])
    working = rows.clone()
    outputs = stack.forward(working.tensors, inputs, train=True, sizes=sizes)
    for row, size in enumerate(sizes.tolist()):
        module = module_of(stack, rows, row).train()
        torch.testing.assert_close(outputs[row, :size], module(inputs[row, :size]), **EXACT)
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(working.tensors[name][row], tensor.detach(), **EXACT)
    assert working.tensors["2.num_batches_tracked"].tolist() == [1, 1, 1]


def test_evaluation_changes_nothing() -> None:
    stack = stack_of(sequence(nn.BatchNorm1d(6), nn.Dropout(0.5)))
    rows, inputs = stack.initial(0, 3, distinct=True), inputs_for(stack)
    before = rows.clone()
    first = stack.forward(rows.tensors, inputs)
    stack.forward(rows.clone().tensors, inputs, train=True, keys=torch.arange(3))
    assert torch.equal(stack.forward(rows.tensors, inputs), first)
    assert all(torch.equal(tensor, before.tensors[name]) for name, tensor in rows.tensors.items())


def test_gradients_of_the_loop_are_those_of_each_row() -> None:
    stack = stack_of(Branches, "loop")
    rows, inputs = stack.initial(0, 3, distinct=True), inputs_for(stack)
    leaves = {name: tensor.requires_grad_() for name, tensor in rows.tensors.items()}
    gradients = torch.autograd.grad(stack.forward(leaves, inputs).square().sum(), list(leaves.values()))
    for row in range(3):
        module = module_of(stack, rows, row)
        module(inputs[row]).square().sum().backward()
        for (name, parameter), gradient in zip(module.named_parameters(), gradients, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(gradient[row], parameter.grad, **EXACT, msg=name)


@pytest.mark.parametrize(
    ("build", "executor", "message"),
    [
        (Branches, "stacked", "executor 'stacked' cannot run Branches.*use executor auto, vmap or loop"),
        (lambda: build_model("gru", (4,), 3), "vmap", r"executor 'vmap' cannot run _Recurrent \(recurrent layers"),
        (sequence(nn.BatchNorm1d(6, momentum=None)), "vmap", "momentum=None"),
    ],
)
def test_executors_that_cannot(build: Callable[[], nn.Module], executor: str, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        stack_of(build, executor)


def test_inputs_that_do_not_fit_show_at_once() -> None:
    with pytest.raises(CoterieError, match=r"model Sequential cannot take inputs of shape \(5,\)"):
        stack_of(sequence(nn.ReLU()), shape=(5,))


class Growing(nn.Module):
    """Remembers the examples of all its passes."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, x.detach()])
        return self.linear(x)


def test_a_buffer_that_grows_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"replaces its buffer seen of shape \(1, 4\) by one of shape \(3, 4\)"):
        stack_of(Growing)


@pytest.mark.parametrize("executor", ["auto", "loop", "vmap"])
@pytest.mark.parametrize("build", [Random, sequence(nn.AlphaDropout(0.5)), sequence(nn.RReLU())])
def test_random_numbers_without_a_key_are_refused(build: Callable[[], nn.Module], executor: str) -> None:
    with pytest.raises(CoterieError, match=r"no key decides.*use torch\.nn\.Dropout"):
        stack_of(build, executor)


class Codes(nn.Module):
    """Codes below four, with dropout behind their vectors."""

    codes = 4

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.drop, self.linear = nn.Embedding(4, 3), nn.Dropout(0.1), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.drop(self.vectors(x.long())).flatten(1))


class Centred(nn.Module):
    """Codes whose vectors are centred over the batch, behind weights that are zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.linear = nn.Embedding(2, 3), nn.Linear(12, 3)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.vectors(x.long())
        return self.linear((vectors - vectors.mean(0)).flatten(1))


@pytest.mark.parametrize(
    ("build", "sees"),
    [(Branches, False), (Codes, False), (Centred, True), (sequence(nn.LayerNorm(6), nn.Dropout(0.01)), False)],
)
def test_models_that_would_see_padding_are_found(build: Callable[[], nn.Module], sees: bool) -> None:
    """All others train ragged batches at once, which is faster."""
    assert stack_of(build, "vmap").sees_padding == sees


# --- dropout -----------------------------------------------------------------------------------------------------


def images(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Flatten(), nn.Linear(4 * 9, 3))


@pytest.mark.parametrize("executor", ["stacked", "vmap", "loop"])
def test_dropout_zeroes_at_its_rate_and_rescales(executor: str) -> None:
    stack = stack_of(lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 1)), executor)
    rows = stack.initial(0, 2, distinct=True)
    for name, tensor in rows.parameters():
        tensor.fill_(1.0 if name.endswith("weight") else 0.0)
    inputs = torch.ones(2, 4000, 4, dtype=torch.float64)
    outputs = stack.forward(rows.tensors, inputs, train=True, keys=torch.tensor([1, 2]))
    kept = (outputs * 0.7).round()  # how many of the four entries were kept
    torch.testing.assert_close(kept / 0.7, outputs, **EXACT)
    assert kept.mean(dim=(1, 2)).tolist() == pytest.approx([2.8, 2.8], abs=0.06)
    assert not torch.equal(kept[0], kept[1])
    again = stack.forward(rows.tensors, inputs, train=True, keys=torch.tensor([1, 3]))
    assert torch.equal(again[0], outputs[0])
    assert not torch.equal(again[1], outputs[1])
    assert stack.forward(rows.tensors, inputs).unique().tolist() == [4.0]


def test_two_dropouts_draw_two_masks_even_where_they_are_one_object() -> None:
    drop = nn.Dropout(0.5)
    for build in (
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(4, 1)),
        lambda: nn.Sequential(drop, drop, nn.Linear(4, 1)),
    ):
        for executor in ("stacked", "vmap", "loop"):
            stack = stack_of(build, executor)
            rows = stack.initial(0)
            rows.tensors["2.weight"].fill_(1.0)
            outputs = stack.forward(rows.tensors, torch.ones(1, 3000, 4), train=True, keys=torch.tensor([5]))
            kept = (outputs - rows.tensors["2.bias"]) / 4
            assert float(kept.mean()) == pytest.approx(1.0, abs=0.05)  # a quarter of four entries, twice doubled


class Twice(nn.Module):
    """One dropout layer that is called twice."""

    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.drop, self.linear = drop, nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.drop(self.drop(x)))


def twice_in_a_block() -> nn.Module:
    block = nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    return nn.Sequential(block, nn.Identity(), block, nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("build", "executor"),
    [
        (lambda: Twice(nn.Dropout(0.5)), "vmap"), (lambda: Twice(nn.Dropout(0.5)), "loop"), (twice_in_a_block, "vmap"),
        (twice_in_a_block, "loop"), (twice_in_a_block, "stacked"), (lambda: Twice(nn.Dropout1d(0.5)), "vmap"),
    ],
)  # fmt: skip
def test_a_dropout_layer_draws_another_mask_at_each_call(build: Callable[[], nn.Module], executor: str) -> None:
    """A quarter of the entries is left; gradients are of what is left, which the next pass with this key repeats."""
    stack = stack_of(build, executor)
    assert stack.executor == executor
    rows, keys = stack.initial(0, 2, distinct=True), torch.tensor([5, 6])
    for _, tensor in rows.parameters():
        tensor.fill_(0.0)
    weight = next(name for name in rows.tensors if name.endswith("weight"))
    rows.tensors[weight].fill_(1 / 16)
    inputs = torch.ones(2, 3000, 4, dtype=torch.float64)
    kept = stack.forward(rows.tensors, inputs, train=True, keys=keys)
    torch.testing.assert_close((4 * kept).round(), 4 * kept, **EXACT)  # of four entries, those that were doubled twice
    assert kept.mean(dim=(1, 2)).tolist() == pytest.approx([0.25, 0.25], abs=0.02)
    assert not torch.equal(kept[0], kept[1])
    assert torch.equal(stack.forward(rows.tensors, inputs, train=True, keys=keys), kept)
    # of the mean of (z - 1/2)^2, where z is proportional to all weights together
    targets, mean = (
        torch.full((2, 3000), 0.5, dtype=torch.float64),
        torch.full((2, 3000), 1 / 3000, dtype=torch.float64),
    )
    gradient = batch_gradient(stack, rows.tensors, (weight,), inputs, targets, mean, squared_error, keys=keys)[weight]
    expected = (2 * (kept - 0.5) * kept * 16).mean(dim=(1, 2))
    torch.testing.assert_close(gradient.sum(dim=(1, 2)), expected, **EXACT)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_channels_are_dropped_whole(executor: str) -> None:
    stack = stack_of(lambda: nn.Sequential(nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(12, 3)), executor, (3, 2, 2))
    rows = stack.initial(0, 2, distinct=True)
    weight = torch.zeros(3, 12, dtype=torch.float64)
    for channel in range(3):
        weight[channel, 4 * channel : 4 * channel + 4] = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    rows.tensors["2.weight"][:], rows.tensors["2.bias"][:] = weight, 0.0
    outputs = stack.forward(rows.tensors, torch.ones(2, 500, 3, 2, 2), train=True, keys=torch.tensor([1, 2]))
    assert sorted(outputs.unique().tolist()) == [0.0, 2222.0]
    assert float((outputs > 0).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_channel_dropout_agrees_between_executors() -> None:
    build = images(nn.ReLU(), nn.Dropout2d(0.4))
    one, other = stack_of(build, "vmap", (1, 5, 5)), stack_of(build, "loop", (1, 5, 5))
    rows, keys = one.initial(0, 3, distinct=True), torch.tensor([4, 5, 6])
    inputs = inputs_for(one)
    torch.testing.assert_close(
        one.forward(rows.tensors, inputs, train=True, keys=keys),
        other.forward(rows.tensors, inputs, train=True, keys=keys), **EXACT,
    )  # fmt: skip


def test_masks_do_not_depend_on_padding_or_on_other_rows() -> None:
    for executor in ("stacked", "vmap", "loop"):
        stack = stack_of(sequence(nn.Dropout(0.5)), executor)
        rows, inputs, keys = stack.initial(0, 3, distinct=True), inputs_for(stack), torch.tensor([7, 8, 9])
        whole = stack.forward(rows.tensors, inputs, train=True, keys=keys)
        part = stack.forward(rows[1].tensors, inputs[1:2, :3], train=True, keys=keys[1:2])
        torch.testing.assert_close(part[0], whole[1, :3], **EXACT)


def test_training_with_dropout_needs_keys() -> None:
    stack = stack_of(sequence(nn.Dropout(0.5)))
    with pytest.raises(ValueError, match="needs keys"):
        stack.forward(stack.initial(0).tensors, inputs_for(stack, 1), train=True)


# --- head, features, modules back ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "head", "inside"),
    [
        (sequence(nn.ReLU()), "3", {"3.weight", "3.bias"}),
        (Branches, "first.out", {"first.out.weight", "first.out.bias"}),
        (lambda: nn.Linear(4, 3), "", {"weight", "bias"}),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 1), nn.Flatten()),
            "2",
            {"2.weight", "2.bias"},
        ),
        (lambda: build_model("gru", (4, 2), 3), "head", {"head.weight", "head.bias"}),
        (lambda: nn.Sequential(*[nn.Linear(4, 4) for _ in range(12)]), "11", {"11.weight", "11.bias"}),
    ],
)
def test_the_head_is_found(build: Callable[[], nn.Module], head: str, inside: set[str]) -> None:
    module = build()
    assert head_name(module) == head
    shape = {"Conv2d": (1, 3, 3)}.get(type(next(module.children(), module)).__name__, (4,))
    layout = stack_of(build, shape=(4, 2) if hasattr(module, "gru") else shape).layout
    assert layout.head == inside
    assert set(layout.part("head")) == inside
    assert set(layout.part("body")) == set(layout.parameters) - inside


def test_heads_that_are_none() -> None:
    class Wrong(Branches):
        head_name = "classifier"

    with pytest.raises(CoterieError, match="declares the head 'classifier', which has no parameters"):
        stack_of(Wrong)
    with pytest.raises(CoterieError, match="has no parameters"):
        stack_of(lambda: nn.Sequential(nn.Flatten(), nn.ReLU()))


@pytest.mark.parametrize("executor", ["auto", "vmap", "loop"])
def test_frozen_parameters_are_named(executor: str) -> None:
    """Those without ``requires_grad``; a model of nothing else cannot be trained, but what precedes a head may be."""

    def half() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6).requires_grad_(False), nn.Tanh(), nn.Linear(6, 3))

    stack = stack_of(half, executor)
    assert stack.layout.frozen == {"0.weight", "0.bias"}
    assert stack.layout.trained() == stack.layout.trained("head") == ("2.weight", "2.bias")
    assert stack.layout.trained("body") == ()
    assert not module_of(stack, stack.initial(0), 0).get_parameter("0.weight").requires_grad
    assert stack.features(stack.initial(0, 3).tensors, inputs_for(stack)).shape == (3, 5, 6)
    with pytest.raises(CoterieError, match=r"all parameters of model Sequential are frozen.*leave requires_grad on"):
        stack_of(lambda: half().requires_grad_(False), executor)


@pytest.mark.parametrize("executor", ["auto", "vmap", "loop"])
def test_features_are_what_enters_the_head(executor: str) -> None:
    stack = stack_of(sequence(nn.ReLU(), nn.Dropout(0.5)), executor)
    rows, inputs = stack.initial(0, 3, distinct=True), inputs_for(stack)
    found = stack.features(rows.tensors, inputs)
    for row in range(3):
        module = module_of(stack, rows, row).eval()
        assert isinstance(module, nn.Sequential)
        torch.testing.assert_close(found[row], module[:-1](inputs[row]), **EXACT)
        torch.testing.assert_close(stack.forward(rows.tensors, inputs)[row], module[-1](found[row]), **EXACT)


@pytest.mark.parametrize("executor", ["auto", "vmap", "loop"])
def test_features_of_a_model_that_is_all_head(executor: str) -> None:
    bare = stack_of(lambda: nn.Linear(4, 3), executor)
    inputs = inputs_for(bare)
    assert torch.equal(bare.features(bare.initial(0, 3).tensors, inputs), inputs)
    flat = stack_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), executor, (2, 2))
    found = flat.features(flat.initial(0, 3).tensors, inputs.view(3, 5, 2, 2))
    assert torch.equal(found, inputs)


def test_modules_back() -> None:
    """A plain module of the user's own class, dropout and all, apart from the stack."""
    stack = stack_of(sequence(nn.BatchNorm1d(6), nn.Dropout(0.2)))
    rows = stack.initial(0, 3, distinct=True)
    module = module_of(stack, rows, 2)
    assert type(module[3]) is nn.Dropout  # type: ignore[index]
    assert module.state_dict().keys() == rows.tensors.keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, rows.tensors[name][2])
    with torch.no_grad():
        module[1].weight.zero_()  # type: ignore[index]
    assert (rows.tensors["1.weight"][2] != 0).any()
    assert torch.equal(module_of(stack, stack.initial(4, 3), 1)[1].weight, stack.initial(4).tensors["1.weight"][0])  # type: ignore[index]


def test_tied_weights_come_back_tied() -> None:
    def build() -> nn.Module:
        linear = nn.Linear(4, 4)
        return nn.Sequential(linear, nn.Tanh(), linear)

    stack = stack_of(build)
    assert stack.layout.d == 20
    assert stack.executor == "vmap"
    rows, inputs = stack.initial(0, 3, distinct=True), inputs_for(stack)
    module = module_of(stack, rows, 1)
    torch.testing.assert_close(stack.forward(rows.tensors, inputs)[1], module(inputs[1]), **EXACT)
    assert isinstance(module, nn.Sequential)
    assert module[0] is module[2]


def test_a_factory_that_hands_out_one_module() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    stack = stack_of(lambda: module)
    stack.forward(stack.initial(0, 3).clone().tensors, inputs_for(stack), keys=torch.arange(3))
    stack.features(stack.initial(0, 3).tensors, inputs_for(stack))
    module_of(stack, stack.initial(0) * 2.0, 0)
    assert type(module[2]) is nn.Dropout
    assert type(module[3]) is nn.Linear
    assert module[0].weight.dtype == torch.float32
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_batch_normalisation_without_running_statistics_is_refused() -> None:
    """Else a client would be evaluated by the examples that are measured beside its own."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3))

    with pytest.raises(CoterieError, match="Sequential: 1 is a batch normalisation without running statistics"):
        Stack(build, (4,))


def test_layout() -> None:
    stack = stack_of(sequence(nn.BatchNorm1d(6)), policy="local")
    layout = stack.layout
    assert layout.parameters == ("1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias")
    assert layout.buffers == ("2.running_mean", "2.running_var", "2.num_batches_tracked")
    assert layout.policy == "local"
    assert layout.d == 30 + 12 + 21
    assert isinstance(stack.initial(0), Models)


@pytest.mark.parametrize(
    ("build", "shape", "widest"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 3)), (6,), 6),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 3)), (3, 6, 6), 128),
        (lambda: nn.Sequential(nn.Linear(6, 50), nn.BatchNorm1d(50), nn.Linear(50, 3)), (6,), 50),
        (lambda: build_model("gru", (4, 2), 3, hidden=5), (4, 2), 20),
    ],
)
def test_the_widest_layer(build: Callable[[], nn.Module], shape: tuple[int, ...], widest: int) -> None:
    assert Stack(build, shape).widest == widest


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", BUILDS)
def test_cuda_forward(name: str) -> None:
    """Buffers that are not saved included."""
    build, shape, _ = BUILDS[name]
    near, far = stack_of(build, "loop", shape), stack_of(build, shape=shape, device="cuda")
    rows, inputs = near.initial(0, 3, distinct=True), inputs_for(near)
    sizes = torch.tensor([5, 3, 2])
    # torch's CUDA kernel of weight normalisation takes its square root in single precision, whatever the weights have
    accuracy = 1e-6 if name == "weight norm" else 1e-9
    for train in (False, True):
        one, other = rows.clone(), rows.to("cuda").clone()
        expected = near.forward(one.tensors, inputs, train=train, sizes=sizes)
        outputs = far.forward(other.tensors, inputs.cuda(), train=train, sizes=sizes.cuda())
        for row, size in enumerate(sizes.tolist()):
            torch.testing.assert_close(outputs[row, :size].cpu(), expected[row, :size], rtol=0, atol=accuracy)
        for buffer in rows.layout.buffers:
            torch.testing.assert_close(other.tensors[buffer].cpu(), one.tensors[buffer], rtol=0, atol=accuracy)
    assert far.features(rows.to("cuda").tensors, inputs.cuda()).device.type == "cuda"
    assert module_of(far, rows.to("cuda"), 1).state_dict().keys() == rows.tensors.keys()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_float32_is_float32_on_a_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch rounds the inputs of convolutions on NVIDIA's GPUs to TF32 where nobody forbids it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    forbid_short_products(torch.device(device))
    assert torch.backends.cudnn.allow_tf32 == (device == "cpu")
