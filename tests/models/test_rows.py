"""Models: a stack of models is a matrix with one row a model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.models import Layout, Models, stack_candidates, stack_rows
from coterie.models.rows import Buffers

EXACT = {"rtol": 0.0, "atol": 1e-12}


def layout(policy: Buffers = "average") -> Layout:
    """A matrix, a vector and a mere number as parameters; a real, an integer and a boolean buffer."""
    shapes = {"w": (3, 2), "b": (4,), "s": (), "mean": (2,), "count": (), "flag": (2,)}
    return Layout(
        ("w", "b", "s"), ("mean", "count", "flag"), {n: torch.Size(s) for n, s in shapes.items()},
        frozenset({"b", "s"}), policy,
    )  # fmt: skip


def models(k: int = 4, seed: int = 0, policy: Buffers = "average", dtype: torch.dtype = torch.float64) -> Models:
    draw = torch.Generator().manual_seed(seed)
    own = layout(policy)
    tensors: dict[str, Tensor] = {
        name: torch.randn(k, *own.shapes[name], generator=draw, dtype=dtype) for name in (*own.parameters, "mean")
    }
    tensors["count"] = torch.randint(1, 50, (k,), generator=draw)
    tensors["flag"] = torch.rand(k, 2, generator=draw) > 0.7
    return Models(own, {name: tensors[name] for name in (*own.parameters, *own.buffers)})


def common(k: int = 4, seed: int = 0) -> Models:
    return models(1, seed).repeat(k)


def stored(theta: Models) -> int:
    """Bytes in memory."""
    return sum(tensor.untyped_storage().nbytes() for tensor in theta.tensors.values())


def equal(one: Models, other: Models) -> bool:
    return all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


# --- shape -------------------------------------------------------------------------------------------------------


def test_shape_and_size() -> None:
    theta = models(5)
    assert len(theta) == 5
    assert theta.d == theta.layout.d == 6 + 4 + 1
    assert tuple(theta.flat().shape) == (5, 11)
    assert torch.equal(theta.flat()[2], torch.cat([theta.tensors[n][2].reshape(-1) for n in ("w", "b", "s")]))
    assert theta.bytes_per_row() == (11 * 8, 2 * 8 + 8 + 2)
    assert models(dtype=torch.float32).bytes_per_row() == (11 * 4, 2 * 4 + 8 + 2)
    assert theta.dtype == torch.float64
    assert theta.device.type == "cpu"
    assert repr(theta) == "Models((5,) x 11, torch.float64)"
    assert "common row" in repr(common())


def test_parts() -> None:
    theta = models()
    assert set(theta["head"].tensors) == {"b", "s"}
    assert set(theta["body"].tensors) == {"w", "mean", "count", "flag"}
    assert set(theta["all"].tensors) == {"w", "b", "s", "mean", "count", "flag"}
    assert theta["head"].d + theta["body"].d == theta.d
    for word in ("tail", "last", "last one", "before 2"):
        with pytest.raises(KeyError, match="head, body, last N, before last N and all"):
            theta[word]


def layered() -> Models:
    """Two linear layers with a normalisation between them."""
    names = ("0.weight", "0.bias", "1.weight", "2.weight", "2.bias")
    shapes = {name: torch.Size([2]) for name in (*names, "1.mean", "3.count")}
    own = Layout(names, ("1.mean", "3.count"), shapes, frozenset({"2.weight", "2.bias"}))
    return Models(own, {name: torch.randn(3, 2, dtype=torch.float64) for name in shapes})


def test_parts_by_layers() -> None:
    theta = layered()
    assert theta.layout.layers == ("0", "1", "2")
    assert set(theta["last 1"].tensors) == {"2.weight", "2.bias"}
    assert set(theta["last 2"].tensors) == {"1.weight", "1.mean", "2.weight", "2.bias"}
    assert set(theta["before last 2"].tensors) == {"0.weight", "0.bias", "3.count"}
    assert set(theta["body"].tensors) == {"0.weight", "0.bias", "1.weight", "1.mean", "3.count"}


@pytest.mark.parametrize(("nothing", "everything"), [("last 0", "before last 0"), ("before last 9", "last 9")])
def test_a_part_without_parameters_still_has_rows(nothing: str, everything: str) -> None:
    theta, other = layered(), layered()
    empty = theta[nothing]
    assert (len(empty), empty.d, empty.bytes_per_row()[0]) == (3, 0, 0)
    assert empty.finite().all()
    assert empty.mixed(torch.ones(2, 3)).lead == (2,)
    assert torch.equal(theta[everything].flat(), theta.flat())
    assert torch.equal(theta.with_part(nothing, other[nothing]).flat(), theta.flat())
    assert torch.equal(theta.with_part(everything, other[everything]).flat(), other.flat())


def test_with_part_leaves_both_as_they_are() -> None:
    theta, other = layered(), layered()
    before = theta.flat()
    joined = theta.with_part("body", other["body"])
    assert torch.equal(joined["body"].flat(), other["body"].flat())
    assert torch.equal(joined["head"].flat(), theta["head"].flat())
    joined.tensors["0.weight"].zero_()
    assert torch.equal(theta.flat(), before)
    assert (other.tensors["0.weight"] != 0).all()


def candidates(shared: bool) -> tuple[Models, Tensor]:
    bank = models(4)
    index = torch.arange(4).expand(3, 4) if shared else torch.tensor([[0, 1, 3, 2], [2, 2, 1, 0], [3, 1, 0, 2]])
    if shared:
        made = Models(bank.layout, {name: t.expand(3, *t.shape) for name, t in bank.tensors.items()})
    else:
        made = Models(bank.layout, {name: t[index] for name, t in bank.tensors.items()})
    return made, bank.flat()[index]


@pytest.mark.parametrize("shared", [True, False])
def test_candidates_are_blended_and_multiplied_row_by_row(shared: bool) -> None:
    made, flat = candidates(shared)
    weights, row = torch.rand(3, 4, dtype=torch.float64), models(3, seed=5)
    torch.testing.assert_close(made.blended(weights).flat(), (weights.unsqueeze(-1) * flat).sum(1), **EXACT)
    torch.testing.assert_close(made.dots(row), (flat * row.flat().unsqueeze(1)).sum(-1), **EXACT)


def test_assigning_a_part_copies_it() -> None:
    theta, other = models(), models(seed=1)
    before = theta.clone()
    theta["head"] = other["head"]
    assert equal(theta["head"], other["head"])
    assert torch.equal(theta.tensors["w"], before.tensors["w"])
    assert torch.equal(theta.tensors["mean"], before.tensors["mean"])  # of the body
    other.tensors["b"].zero_()
    assert not (theta.tensors["b"] == 0).all()
    theta["body"] = models(1, seed=2)["body"]  # one row for all
    assert torch.equal(theta.tensors["w"], models(1, seed=2).tensors["w"].expand(4, 3, 2))
    with pytest.raises(RuntimeError):
        theta["head"] = models(3)["head"]


# --- rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [models(), common()], ids=["rows", "common"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (1, [1]), (-1, [3]), (-3, [1]), (np.int64(2), [2]), (torch.tensor(2), [2]), (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2]), ([3, 0, 3], [3, 0, 3]), (torch.tensor([2, 1]), [2, 1]), (np.array([1, 2]), [1, 2]),
        (torch.tensor([True, False, False, True]), [0, 3]), ([], []), (torch.zeros(4, dtype=torch.bool), []),
    ],
)  # fmt: skip
def test_rows(theta: Models, rows: Any, expected: list[int]) -> None:
    chosen = theta[rows]
    assert len(chosen) == len(expected)
    for name, tensor in theta.tensors.items():
        assert torch.equal(chosen.tensors[name], tensor[expected])
        assert chosen.tensors[name].dtype == tensor.dtype


@pytest.mark.parametrize("row", [4, -5])
def test_a_row_outside_ends_a_loop(row: int) -> None:
    with pytest.raises(IndexError, match="of 4 models"):
        models()[row]
    assert sum(1 for _ in models()) == 4  # type: ignore[misc]


@pytest.mark.parametrize("rows", [2, slice(1, 3), [3, 0], torch.tensor([False, True, False, True])])
@pytest.mark.parametrize("shared", [False, True])
def test_row_assignment(rows: Any, shared: bool) -> None:
    theta = common() if shared else models()
    before, index = theta.clone(), torch.arange(4)[rows].reshape(-1)
    values = models(len(index), seed=3)
    theta[rows] = values
    for name, tensor in theta.tensors.items():
        for row in range(4):
            place = (index == row).nonzero().flatten().tolist()
            expected = values.tensors[name][place[0]] if place else before.tensors[name][row]
            assert torch.equal(tensor[row], expected)
    values.tensors["w"].zero_()
    assert (theta.tensors["w"][index] != 0).any()


def test_assignment_keeps_the_type() -> None:
    theta = models(dtype=torch.float32)
    theta[[0]] = models(1, seed=1)
    assert theta.dtype == torch.float32
    assert torch.equal(theta.tensors["w"][0], models(1, seed=1).tensors["w"][0].float())


def add_one(theta: Models) -> None:
    theta[[0]] = theta[:1] + 1.0


def double(theta: Models) -> None:
    theta.mixed(torch.eye(len(theta)) * 2, out=theta)


@pytest.mark.parametrize("rows", [[1, 2], [2, 0], [0, 1, 2], 1, torch.tensor([True, True, False]), "head", "body"])
@pytest.mark.parametrize("build", [models, common])
@pytest.mark.parametrize("change", [add_one, double])
def test_rows_by_number_and_parts_are_values(
    rows: Any, build: Callable[[int], Models], change: Callable[[Models], None]
) -> None:
    """Whether they lie together or not, neither side's changes reach the other."""
    theta = build(3)
    taken, before = theta[rows], theta[rows].clone()
    change(theta)
    assert equal(taken, before)
    theta = build(3)
    taken, before = theta[rows], theta.clone()
    change(taken)
    assert equal(theta, before)


def test_rows_by_number_share_storage_until_something_changes() -> None:
    theta = models(3)
    assert theta[[1, 2]].tensors["w"].data_ptr() == theta[1:].tensors["w"].data_ptr()
    address = theta.tensors["w"].data_ptr()
    theta[0] = theta[1]
    assert theta.tensors["w"].data_ptr() == address


def test_a_lone_row_taken_twice_is_a_value_too() -> None:
    theta = models(1)
    taken, before = theta[[0, 0]], theta[[0, 0]].clone()
    add_one(theta)
    assert equal(taken, before)


def test_ownership_follows_views_and_not_copies() -> None:
    """A result that shares storage with a state's stack says so, so that assigning it copies."""
    theta = models()
    theta.owned = True
    assert theta[1:3].owned
    assert theta["head"].owned
    assert theta[:1].repeat(3).owned
    for fresh in (
        theta[[0, 2]],
        theta.clone(),
        theta + theta,
        torch.eye(4, dtype=torch.float64) @ theta,
        theta.zeros(),
    ):
        assert not fresh.owned
        assert not {t.untyped_storage().data_ptr() for t in fresh.tensors.values()} & {
            t.untyped_storage().data_ptr() for t in theta.tensors.values()
        }


# --- one common row ----------------------------------------------------------------------------------------------


def test_a_common_row_is_stored_once_and_stays_so() -> None:
    theta, row = common(1000), stored(models(1))
    assert theta.common
    assert stored(theta) == row
    for kept in (
        theta.clone(), theta[5:900], theta[[1, 7, 9]], theta[torch.ones(1000, dtype=torch.bool)], theta.zeros(),
        theta * 2.0, theta / 3, 0.5 * theta, theta + theta, theta - theta * 0.1, -theta, theta * torch.tensor(2.0),
        theta.to("cpu"), stack_rows([theta[:3], theta[500:]]), theta[:10].repeat(70),
    ):  # fmt: skip
        assert kept.common
        assert len(kept) > 1
        assert stored(kept) == row
    assert len(stack_rows([theta[:3], theta[500:]])) == 503


def test_common_rows_compute_as_their_copies() -> None:
    theta = common()
    copies = theta.clone()
    copies.materialise()
    assert theta.common
    assert not copies.common
    assert stored(copies) == 4 * stored(theta)
    other = models(seed=1)
    for result, expected in (
        (theta * 2.0, copies * 2.0), (theta + other, copies + other), (other - theta, other - copies),
        (theta * torch.arange(4.0), copies * torch.arange(4.0)), (theta - theta * 0.1, copies - copies * 0.1),
        (theta.clone(), copies), (theta[[2, 1]], copies[[2, 1]]),
    ):  # fmt: skip
        assert equal(result, expected)
    matrix = torch.rand(3, 4, dtype=torch.float64)
    for name, tensor in (matrix @ theta).tensors.items():
        torch.testing.assert_close(tensor, (matrix @ copies).tensors[name], **EXACT)


def test_writing_to_one_of_them_leaves_the_row() -> None:
    row = models(1)
    before, theta = row.clone(), row.repeat(3)
    theta[1] = models(1, seed=1)
    theta.tensors["w"].zero_()
    assert equal(row, before)


def test_stacking() -> None:
    theta = models(5)
    assert equal(stack_rows([theta[:2], theta[2:]]), theta)
    assert stack_rows([theta]) is theta
    assert equal(stack_rows([common(2), models(3, seed=1)])[2:], models(3, seed=1))
    different = stack_rows([common(2), common(2, seed=1)])
    assert not different.common
    assert equal(different[2:], common(2, seed=1))


# --- arithmetic --------------------------------------------------------------------------------------------------

OPERATIONS: list[Callable[[Any, Any], Any]] = [operator.add, operator.sub, operator.mul, operator.truediv]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_arithmetic_is_that_of_the_matrix(operation: Callable[[Any, Any], Any]) -> None:
    theta, other, row = models(), models(seed=1), models(1, seed=2)
    per_row = torch.tensor([1.0, -2.0, 0.5, 3.0])
    for right, plain in [
        (other, other.flat()), (row, row.flat()), (2.5, 2.5), (3, 3), (torch.tensor(0.5), 0.5), (np.float64(4), 4.0),
        (per_row, per_row.double()[:, None]),
    ]:  # fmt: skip
        result = operation(theta, right)
        torch.testing.assert_close(result.flat(), operation(theta.flat(), plain), **EXACT)
        for name in theta.layout.buffers:  # those of the left operand
            assert torch.equal(result.tensors[name], theta.tensors[name])
        assert list(result.tensors) == list(theta.tensors)
    torch.testing.assert_close((-theta).flat(), -theta.flat(), **EXACT)


def test_numbers_on_the_left() -> None:
    theta, per_row = models(), torch.tensor([1.0, -2.0, 0.5, 3.0])
    for left in (2.5, np.float64(2.5), torch.tensor(2.5)):
        torch.testing.assert_close((left * theta).flat(), 2.5 * theta.flat(), **EXACT)
        torch.testing.assert_close((left + theta).flat(), 2.5 + theta.flat(), **EXACT)
    torch.testing.assert_close((per_row * theta).flat(), per_row.double()[:, None] * theta.flat(), **EXACT)
    torch.testing.assert_close((per_row + theta).flat(), per_row.double()[:, None] + theta.flat(), **EXACT)


def test_one_row_that_meets_many_becomes_many() -> None:
    row, theta = models(1), models(seed=1)
    for result in (row - theta, row * torch.arange(4.0), torch.arange(4.0) * row):
        assert {len(tensor) for tensor in result.tensors.values()} == {4}
        assert (result.tensors["count"] == row.tensors["count"]).all()
    torch.testing.assert_close((row - theta).flat(), row.flat() - theta.flat(), **EXACT)


def test_arithmetic_keeps_the_type_and_its_operands() -> None:
    theta = models(dtype=torch.float32)
    before = theta.clone()
    assert (theta * torch.rand(4, dtype=torch.float64)).dtype == torch.float32
    assert (theta - 0.1).dtype == torch.float32
    assert (torch.rand(2, 4, dtype=torch.float64) @ theta).dtype == torch.float32
    assert equal(theta, before)


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="one number for each"):
        models() * torch.ones(4, 2)
    with pytest.raises(RuntimeError):
        models() * torch.ones(3)
    with pytest.raises(TypeError):
        torch.ones(4) - models()
    for wrong in (torch.ones(2, 3), torch.ones(2, 5), torch.ones(3), torch.ones(1, 2, 4)):
        with pytest.raises(ValueError, match="do not fit 4 models"):
            wrong @ models()


# --- M @ theta ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [1, 3, 4])
def test_matrix_product(r: int) -> None:
    theta, matrix = models(), torch.randn(r, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for result in (matrix @ theta, torch.matmul(matrix, theta), theta.mixed(matrix)):
        assert {len(tensor) for tensor in result.tensors.values()} == {r}
        torch.testing.assert_close(result.flat(), matrix @ theta.flat(), **EXACT)
    torch.testing.assert_close((matrix.float() @ theta).flat(), matrix.float().double() @ theta.flat(), **EXACT)


def test_weights_give_one_row() -> None:
    theta, weights = models(), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    for left in (weights, weights.numpy()):
        result = left @ theta
        assert len(result) == 1
        torch.testing.assert_close(result.flat()[0], weights @ theta.flat(), **EXACT)


def test_the_identity_changes_nothing() -> None:
    theta = models()
    assert equal(torch.eye(4, dtype=torch.float64) @ theta, theta)


def test_a_product_into_storage_that_is_there() -> None:
    theta, out = models(), common()
    matrix = torch.rand(4, 4, dtype=torch.float64)
    expected = matrix @ theta
    result = theta.mixed(matrix, out=out)
    assert equal(result, expected)
    assert equal(out, expected)
    addresses = [tensor.data_ptr() for tensor in out.tensors.values()]
    theta.mixed(matrix @ matrix, out=out)
    assert [tensor.data_ptr() for tensor in out.tensors.values()] == addresses
    assert equal(out, (matrix @ matrix) @ theta)


MATRIX = torch.tensor(
    [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75], [0.0, 1.0, 0.0, 0.0], [0.25] * 4], dtype=torch.float64
)


def test_buffers_of_a_mixture() -> None:
    """Real ones are averaged or stay, by policy; integer ones take the maximum over the models with weight."""
    for policy, expected in (("average", MATRIX @ models().tensors["mean"]), ("local", models().tensors["mean"])):
        theta = models(policy=policy)  # type: ignore[arg-type]
        mixed = MATRIX @ theta
        torch.testing.assert_close(mixed.tensors["mean"], expected, **EXACT)
        count, flag = theta.tensors["count"], theta.tensors["flag"]
        assert mixed.tensors["count"].tolist() == [
            int(max(count[0], count[1])), int(max(count[2], count[3])), int(count[1]), int(count.max())
        ]  # fmt: skip
        assert torch.equal(mixed.tensors["flag"], torch.stack([flag[:2].any(0), flag[2:].any(0), flag[1], flag.any(0)]))
        assert mixed.tensors["count"].dtype == torch.int64
        assert mixed.tensors["flag"].dtype == torch.bool
    one = MATRIX[3] @ models(policy="local")
    assert torch.equal(one.tensors["mean"], models().tensors["mean"][:1])


def test_without_buffers_there_are_the_parameters_alone() -> None:
    theta = models()
    bare = theta.without_buffers()
    assert set(bare.tensors) == {"w", "b", "s"}
    assert torch.equal(bare.flat(), theta.flat())
    assert bare.bytes_per_row()[1] == 0
    theta[0] = models(seed=1)[0]
    assert torch.equal(bare.flat(), models().flat())  # a value of its own
    assert equal(models() + bare, models() * 2.0)  # the buffers of the left
    assert common().without_buffers().common


def test_buffers_of_common_rows_and_of_no_weight() -> None:
    theta = common()
    mixed = MATRIX @ theta
    assert torch.equal(mixed.tensors["count"], theta.tensors["count"])
    assert torch.equal(mixed.tensors["flag"], theta.tensors["flag"])
    nothing = torch.zeros(2, 4, dtype=torch.float64) @ models()
    assert nothing.tensors["count"].tolist() == 2 * [int(models().tensors["count"].max())]
    assert float(nothing.norm().sum()) == 0.0


def test_rows_that_are_not_kept_are_zeros() -> None:
    theta = models()
    theta.tensors[theta.layout.parameters[0]][1] = torch.nan
    rows = torch.tensor([True, False, True, True])
    kept = theta.kept(rows)
    for name, tensor in kept.tensors.items():
        assert torch.equal(tensor[rows], theta.tensors[name][rows])
        assert not tensor[1].any()
        assert tensor.dtype == theta.tensors[name].dtype
    assert theta.kept(torch.ones(4, dtype=torch.bool)) is theta


# --- norms, finiteness, candidates ---------------------------------------------------------------------------------


def test_norms_and_products_are_of_parameters_in_float64() -> None:
    theta, other = models(), models(seed=1)
    torch.testing.assert_close(theta.norm(), theta.flat().norm(dim=1), **EXACT)
    torch.testing.assert_close(theta.dot(other), (theta.flat() * other.flat()).sum(1), **EXACT)
    theta.tensors["mean"].fill_(1e9)
    torch.testing.assert_close(theta.norm(), models().norm(), **EXACT)
    small = models(dtype=torch.float32) * 0.0 + 1.0
    small.tensors["s"][:] = 1e8
    assert small.norm().dtype == torch.float64
    assert small.dot(small).tolist() == [1e16 + 10] * 4  # float32 would lose the tens


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor in float64 that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dtype == torch.float64:
            self.numbers = max(self.numbers, made.numel())
        return made


def broad(k: int, seed: int = 0, n: int = 40_000) -> Models:
    """Rows that are cut into several pieces."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"w": torch.Size([n]), "b": torch.Size([3])}
    own = Layout(("w", "b"), (), shapes, frozenset({"b"}))
    return Models(own, {name: torch.randn(k, *shape, generator=draw) for name, shape in shapes.items()})


def test_products_of_broad_rows_need_little_memory() -> None:
    theta, row = broad(24), broad(1, seed=1)
    cases = {"norm": (theta, theta), "rows": (theta, broad(24, seed=2)), "one": (theta, row), "of one": (row, theta)}
    cases |= {"common": (theta, row.repeat(24)), "both": (row.repeat(24), row.repeat(24))}
    for case, (one, other) in cases.items():
        with Largest() as largest:
            product = one.dot(other)
        expected = (one.flat().double() * other.flat().double()).sum(1)
        torch.testing.assert_close(product, expected, rtol=1e-12, atol=1e-9, msg=case)
        assert largest.numbers <= torch.get_num_threads() * 2**16, case


def test_the_product_of_a_row_does_not_depend_on_the_others() -> None:
    """To the last bit, whether it is alone, among few or among many, and whether its partner is common to all."""
    for n in (3, 2**14, 40_000):
        theta, other, row = broad(70, n=n), broad(70, seed=1, n=n), broad(1, seed=2, n=n)
        for chosen in ([0], [5, 69], list(range(40))):
            assert torch.equal(theta[chosen].dot(other[chosen]), theta.dot(other)[chosen])
            assert torch.equal(theta[chosen].norm(), theta.norm()[chosen])
            assert torch.equal(theta[chosen].dot(row), theta.dot(row.repeat(70))[chosen])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["w", "s", "mean"])
def test_finite_rows(value: float, name: str) -> None:
    theta = models()
    assert theta.finite().tolist() == [True] * 4
    theta.tensors[name][2] = value
    assert theta.finite().tolist() == [True, True, False, True]


def test_a_sum_that_overflows_is_finite() -> None:
    theta = models(dtype=torch.float32)
    theta.tensors["w"][1] = 3e38
    assert theta.finite().tolist() == [True] * 4


def test_no_rows_at_all() -> None:
    none = models()[[]]
    assert none.finite().tolist() == []
    assert none.norm().tolist() == []
    assert tuple(none.flat().shape) == (0, 11)
    assert len(none + none) == len(none.clone()) == len(none * 2.0) == 0


def test_rows_are_seen_as_one_candidate_each() -> None:
    for theta in (models(3), common(3)):
        one = theta.as_candidates()
        assert one.lead == (3, 1)
        assert one.common == theta.common
        assert equal(one.candidate(0), theta)
        assert stored(one) == stored(theta)
        assert one.as_candidates() is one


def test_candidates() -> None:
    """Several models per client: two leading axes."""
    theta = models(6)
    wide = Models(theta.layout, {n: t.reshape(2, 3, *t.shape[1:]) for n, t in theta.tensors.items()})
    assert tuple(wide.lead) == (2, 3)
    assert len(wide) == 2
    assert equal(wide.flatten_candidates(), theta)
    torch.testing.assert_close(wide.norm(), theta.norm().view(2, 3), **EXACT)
    torch.testing.assert_close(wide.dot(wide * 2.0), 2 * theta.dot(theta).view(2, 3), **EXACT)
    one, other = stack_candidates([broad(2, seed) for seed in (0, 1, 2)]), stack_candidates([broad(2, 3)] * 3)
    torch.testing.assert_close(one.dot(other)[:, 1], broad(2, 1).dot(broad(2, 3)), rtol=1e-12, atol=0)
    weights = torch.rand(2, 3, dtype=torch.float64)
    assert equal((wide * weights).flatten_candidates(), theta * weights.flatten())
    torch.testing.assert_close(
        (wide * weights[:, 0]).flatten_candidates().flat(),
        theta.flat() * weights[:, :1].repeat_interleave(3, 0),
        **EXACT,
    )
    assert equal(wide[1].flatten_candidates(), theta[3:])
    wide.tensors["w"][1, 2, 0, 0] = torch.nan
    assert wide.finite().tolist() == [True, False]


def test_clone_shares_nothing() -> None:
    theta = models()
    copy = theta.clone()
    copy.tensors["w"].zero_()
    assert equal(theta, models())


def test_zeros() -> None:
    zeros = models().zeros()
    assert float(zeros.norm().sum()) == 0
    assert len(zeros) == 4
    assert stored(zeros) == stored(models(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_takes_indices_and_weights_from_the_cpu() -> None:
    near = models()
    far = near.to("cuda")
    per_row, matrix = torch.arange(4.0), torch.rand(3, 4, dtype=torch.float64)
    for rows in ([2, 0], torch.tensor([1, 3]), torch.tensor([True, False, True, False]), slice(1, 3), 2):
        assert equal(far[rows].to("cpu"), near[rows])
        one, other = near.clone(), far.clone()
        one[rows], other[rows] = near[rows] * 2.0, far[rows] * 2.0
        assert equal(other.to("cpu"), one)
    for result, expected in (
        (matrix @ far, matrix @ near), (matrix.cuda() @ far, matrix @ near), (far * per_row, near * per_row),
        (far * 2.0, near * 2.0), (per_row * far, per_row * near),
    ):  # fmt: skip
        assert result.device.type == "cuda"
        torch.testing.assert_close(result.flat().cpu(), expected.flat(), **EXACT)
        assert torch.equal(result.tensors["count"].cpu(), expected.tensors["count"])
    assert common(5).to("cuda").common
    assert far.finite().tolist() == [True] * 4
