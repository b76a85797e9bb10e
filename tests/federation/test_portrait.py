"""The portrait of a federation: counts, likeness, pictures, and no more where there are no examples."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import torch

from coterie.federation import ClientData, Federation
from coterie.federation.outline import outline
from coterie.federation.portrait import portrait


def federation(inputs: list[torch.Tensor], targets: list[torch.Tensor], classes: int = 3) -> Federation:
    data = ClientData.from_clients(inputs, targets)
    names = tuple(f"c{k}" for k in range(len(inputs)))
    return Federation(names, data, data, data, "classification", classes, {"source": "own"})


def test_counts_and_likeness() -> None:
    a, b = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[-1.0, 2.0], [-3.0, 2.0]])
    one = torch.tensor([0, 0])
    found = portrait(federation([a, a.clone(), b], [one, one, one]))
    assert found["class_counts"] == [[2, 0, 0], [2, 0, 0], [2, 0, 0]]
    assert found["n"]["train"] == [2, 2, 2]
    alike = np.array(found["similarity"])
    np.testing.assert_allclose(np.diag(alike), 1, atol=1e-4)
    assert alike[0, 1] == pytest.approx(1, abs=1e-4)  # the same data
    assert alike[0, 2] < 0  # centred at the mean client
    np.testing.assert_allclose(found["similarity_mean"], (alike.sum(1) - 1) / 2, atol=1e-4)
    assert found["features"]["mean"] == [[2.0, 0.0], [2.0, 0.0], [-2.0, 2.0]]
    assert found["features"]["std"] == [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    json.dumps(found, allow_nan=False)


def test_classes_tell_clients_apart_that_have_the_same_inputs() -> None:
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = portrait(federation([inputs] * 2, [torch.tensor([0, 1]), torch.tensor([1, 0])]))
    assert found["similarity"][0][1] == pytest.approx(-1, abs=1e-4)


def test_pictures_are_those_of_the_clients() -> None:
    pictures = torch.arange(2 * 3 * 4, dtype=torch.uint8).view(6, 1, 2, 2)
    clients = federation([pictures[:3], pictures[3:]], [torch.zeros(3, dtype=torch.int64)] * 2)
    found = portrait(clients)["samples"]
    pixels = np.frombuffer(base64.b64decode(found["pixels"]), dtype=np.uint8).reshape(found["shape"])
    assert found["clients"] == ["c0", "c1"]
    assert pixels.shape == (2, 3, 2, 2, 1)
    wanted = np.round(np.arange(24) / 23 * 255)
    np.testing.assert_array_equal(pixels.ravel(), wanted)
    assert "samples" not in portrait(clients, samples=False)


def test_large_pictures_are_shrunk_and_few_clients_are_shown() -> None:
    pictures = [torch.rand(2, 3, 64, 100) for _ in range(20)]
    found = portrait(federation(pictures, [torch.zeros(2, dtype=torch.int64)] * 20))["samples"]
    assert found["shape"] == [12, 2, 16, 25, 3]
    assert (found["clients"][0], found["clients"][-1]) == ("c0", "c19")


def test_many_clients_are_not_compared_in_pairs() -> None:
    n = 20_000
    data = ClientData(torch.randn(n, 3), torch.randint(0, 40, (n,)), torch.arange(n + 1))
    found = portrait(Federation(tuple(map(str, range(n))), data, data, data, "classification", 40, {}))
    assert "similarity" not in found
    assert "class_counts" not in found
    assert len(found["similarity_mean"]) == n


def test_sites_tell_numbers_only() -> None:
    n = {"train": [5, 6], "validation": [1, 1], "test": [2, 2]}
    found = portrait(outline(["a", "b"], n, feature_shape=(1, 8, 8), task="classification", classes=2))
    assert found["n"] == n
    assert not {"class_counts", "similarity_mean", "samples", "features"} & found.keys()


def test_a_regression_has_no_classes() -> None:
    data = ClientData.from_clients([torch.randn(4, 2)] * 2, [torch.randn(4, 1)] * 2)
    found = portrait(Federation(("a", "b"), data, data, data, "regression", 1, {}))
    assert "class_counts" not in found
    assert len(found["similarity"]) == 2
