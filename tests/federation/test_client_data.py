from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.errors import CoterieError
from coterie.federation import ClientData


def shared() -> ClientData:
    """Three clients of 2, 0 and 3 examples whose rows lie scattered in a shared uint8 tensor of 8."""
    inputs = torch.arange(16, dtype=torch.uint8).view(8, 2)
    return ClientData(inputs, torch.arange(8), torch.tensor([0, 2, 2, 5]), torch.tensor([7, 0, 3, 5, 1]), scale=1 / 255)


def flat() -> ClientData:
    return ClientData(torch.arange(10.0).view(5, 2), torch.arange(5), torch.tensor([0, 2, 2, 5]))


def test_sizes() -> None:
    data = shared()
    assert (data.k, data.total, data.feature_shape) == (3, 5, (2,))
    assert data.n.tolist() == [2, 0, 3]
    assert data.owners().tolist() == [0, 0, 2, 2, 2]


def test_batch_looks_rows_up_and_scales_bytes() -> None:
    x, y = shared().batch(torch.tensor([[0, 4], [2, 2]]))
    assert x.shape == (2, 2, 2)
    assert x.dtype == torch.get_default_dtype()
    torch.testing.assert_close(x * 255, torch.tensor([[[14.0, 15], [2, 3]], [[6, 7], [6, 7]]]))
    assert y.tolist() == [[7, 1], [3, 3]]
    assert y.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_has_the_default_float_type(dtype: torch.dtype) -> None:
    regression = ClientData(torch.rand(4, 3), torch.rand(4, 1), torch.tensor([0, 4]))
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        x, _ = shared().batch(torch.tensor([0]))
        u, v = regression.batch(torch.tensor([0]))
    finally:
        torch.set_default_dtype(before)
    assert x.dtype == u.dtype == v.dtype == dtype
    assert float(x[0, 0]) == pytest.approx(14 / 255, rel=1e-6 if dtype == torch.float32 else 1e-15)


def test_batch_does_not_touch_the_data() -> None:
    data = shared()
    before = data.inputs.clone()
    x, _ = data.batch(torch.arange(5))
    x += 1
    assert torch.equal(data.inputs, before)


def test_client_returns_its_own_examples() -> None:
    x, y = shared().client(2)
    assert y.tolist() == [3, 5, 1]
    torch.testing.assert_close(x[0] * 255, torch.tensor([6.0, 7.0]))
    assert shared().client(1)[0].shape == (0, 2)


@pytest.mark.parametrize("make", [shared, flat])
@pytest.mark.parametrize("clients", [[0, 1, 2], [1, 2], [2], [2, 0], [0, 2, 0], [1], []])
def test_select_equals_client_by_client(make: Any, clients: list[int]) -> None:
    data = make()
    chosen = data.select(clients)
    assert chosen.k == len(clients)
    for i, c in enumerate(clients):
        for got, wanted in zip(chosen.client(i), data.client(c), strict=True):
            assert torch.equal(got, wanted)


def test_select_twice_equals_select_once() -> None:
    data = shared()
    assert torch.equal(data.select([2, 0, 1]).select([1, 0]).client(1)[1], data.client(2)[1])


@pytest.mark.parametrize("clients", [[1, 2], [2, 0]])
def test_select_never_copies_inputs(clients: list[int]) -> None:
    for data in (shared(), flat()):
        chosen = data.select(clients)
        assert chosen.inputs.untyped_storage().data_ptr() == data.inputs.untyped_storage().data_ptr()


def test_select_names_a_client_out_of_range() -> None:
    with pytest.raises(IndexError, match=r"client 3 is not one of 0 \.\. 2"):
        shared().select([0, 3])


def test_from_clients_joins() -> None:
    data = ClientData.from_clients([torch.rand(2, 3), torch.rand(1, 3)], [torch.zeros(2).long(), torch.ones(1).long()])
    assert data.n.tolist() == [2, 1]
    assert data.client(1)[1].tolist() == [1]


@pytest.mark.gpu
def test_to_moves_every_tensor() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    moved = shared().to("cuda")
    assert moved.index is not None
    for tensor in (moved.inputs, moved.targets, moved.offsets, moved.index, moved.n, *moved.client(0)):
        assert tensor.is_cuda
    assert torch.equal(moved.client(2)[0].cpu(), shared().client(2)[0])


def test_to_leaves_no_tensor_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    data = shared()
    rows = torch.arange(len(data.inputs))
    whole = replace(data, weights=torch.ones(data.total, dtype=torch.float64), blocks=rows, order=rows)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self.clone())  # as another device would
    moved = vars(whole.to("elsewhere"))
    tensors = {name: value for name, value in vars(whole).items() if isinstance(value, torch.Tensor)}
    assert {"inputs", "targets", "offsets", "index", "weights", "blocks", "order"} <= set(tensors)
    for name, tensor in tensors.items():
        assert moved[name] is not tensor, name
        assert torch.equal(moved[name], tensor)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": torch.zeros(5, 2, dtype=torch.int32)}, "uint8 or floating point, not torch.int32"),
        ({"targets": torch.zeros(5, dtype=torch.int32)}, "int64 classes or floating point, not torch.int32"),
        ({"targets": torch.zeros(4).long()}, "5 inputs but 4 targets"),
        ({"offsets": torch.tensor([0, 3, 2])}, "never decrease"),
        ({"offsets": torch.tensor([-1, 3])}, "start at 0"),
        ({"offsets": torch.tensor([0.0, 3.0])}, "int64 tensor of k \\+ 1"),
        ({"offsets": torch.tensor([0, 6])}, "reach position 6 but there are only 5"),
        ({"index": torch.tensor([0, 1])}, "reach position 5 but there are only 2"),
        ({"index": torch.zeros(5)}, "index must be int64"),
    ],
)
def test_bad_parts_are_refused(fields: dict[str, Any], message: str) -> None:
    good = {"inputs": torch.zeros(5, 2), "targets": torch.zeros(5).long(), "offsets": torch.tensor([0, 2, 5])}
    with pytest.raises(CoterieError, match=message):
        ClientData(**{**good, **fields})


@pytest.mark.parametrize(
    ("inputs", "targets", "said"),
    [
        ([3, 2], [2, 3], "Client 0 has 3 inputs but 2 targets"),
        ([3], [1, 2], "inputs of 1 clients and targets of 2"),
        ([], [], "inputs of 0 clients"),
    ],
)
def test_clients_bring_as_many_targets_as_inputs(inputs: list[int], targets: list[int], said: str) -> None:
    with pytest.raises(CoterieError, match=said):
        ClientData.from_clients([torch.zeros(n, 2) for n in inputs], [torch.zeros(n).long() for n in targets])
