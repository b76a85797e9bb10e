from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from coterie.errors import CoterieError
from coterie.federation import ClientData, Federation
from coterie.federation.federation import client_names

Make = Callable[..., Federation]


def test_a_good_federation_passes(make_federation: Make) -> None:
    federation = make_federation()
    assert federation.validate() is federation
    assert (federation.k, federation.feature_shape) == (3, (2,))


def test_class_counts(make_federation: Make) -> None:
    assert make_federation().class_counts("test").tolist() == [[2, 1, 1], [0, 2, 0], [1, 0, 2]]
    assert make_federation().select([2, 0]).class_counts().tolist() == [[1, 0, 2], [2, 1, 1]]


def test_class_counts_need_classes(make_federation: Make) -> None:
    with pytest.raises(CoterieError, match="no classes"):
        make_federation(task="regression").class_counts()


def test_select_keeps_names_data_and_columns_together(make_federation: Make) -> None:
    federation = make_federation()
    chosen = federation.select([2, 0])
    assert chosen.names == ("cid", "ann")
    assert chosen.source["clients"]["angle"] == [20.0, 0.0]
    assert federation.source["clients"]["angle"] == [0.0, 10.0, 20.0]
    assert torch.equal(chosen.validation.client(0)[0], federation.validation.client(2)[0])


def test_names_are_padded() -> None:
    assert client_names(3) == ("client-00", "client-01", "client-02")
    assert client_names(101)[7] == "client-007"
    assert list(client_names(1000)) == sorted(client_names(1000))


def test_names_must_be_unique(make_federation: Make) -> None:
    with pytest.raises(CoterieError, match="'ann' is given 2 times"):
        make_federation(names=("ann", "bob", "ann"))


def test_splits_must_have_all_clients(make_federation: Make) -> None:
    with pytest.raises(CoterieError, match="train split has 3 clients but there are 2"):
        make_federation(names=("ann", "bob"))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_name_the_client(make_federation: Make, split: str, value: float) -> None:
    federation = make_federation()
    data: ClientData = getattr(federation, split)
    data.inputs[4, 1] = value
    with pytest.raises(CoterieError, match=f"'bob' has NaN or infinity in its {split} inputs"):
        federation.validate()
    targets = ClientData(torch.zeros(9, 2), torch.zeros(9, 1), data.offsets)
    targets.targets[8] = value
    with pytest.raises(CoterieError, match=f"'cid' has NaN or infinity in its {split} targets"):
        replace(make_federation(), task="regression", **{split: targets}).validate()


def test_a_bad_row_that_no_client_owns_does_no_harm(make_federation: Make) -> None:
    federation = make_federation()
    federation.train.inputs[4] = float("nan")
    others = federation.select([2, 0])
    assert others.validate() is others


def test_the_client_is_named_through_an_index(make_federation: Make) -> None:
    federation = make_federation()
    federation.train.inputs[4] = float("nan")
    with pytest.raises(CoterieError, match="'bob'"):
        federation.select([2, 1, 0]).validate()


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_outside_the_classes_name_the_client(make_federation: Make, label: int) -> None:
    federation = make_federation()
    federation.test.targets[6] = label
    with pytest.raises(CoterieError, match=f"'cid' has the label {label} in its test data, outside the classes 0 .. 2"):
        federation.validate()


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_client_is_named(make_federation: Make, split: str) -> None:
    federation = make_federation()
    empty = replace(getattr(federation, split), offsets=torch.tensor([0, 4, 4, 9]))
    with pytest.raises(CoterieError, match=f"'bob' has no {split} data"):
        replace(federation, **{split: empty}).validate()


def test_validation_may_be_empty(make_federation: Make) -> None:
    federation = make_federation()
    empty = replace(federation.validation, offsets=torch.zeros(4, dtype=torch.int64))
    replace(federation, validation=empty).validate()


def test_classification_needs_classes(make_federation: Make) -> None:
    federation = make_federation()
    floats = replace(federation.train, targets=federation.train.targets.float())
    with pytest.raises(CoterieError, match="int64 class labels"):
        replace(federation, train=floats).validate()


def test_no_client_at_all(make_federation: Make) -> None:
    with pytest.raises(CoterieError, match="no client"):
        make_federation().select([]).validate()


def test_splits_have_one_shape(make_federation: Make) -> None:
    federation = make_federation()
    other = replace(federation.validation, inputs=federation.validation.inputs.repeat(1, 2))
    with pytest.raises(CoterieError, match=r"validation inputs have the shape \(4,\) but the train inputs \(2,\)"):
        replace(federation, validation=other).validate()


def test_targets_have_the_shape_of_the_task(make_federation: Make) -> None:
    federation = make_federation()
    column = replace(federation.test, targets=federation.test.targets[:, None])
    with pytest.raises(CoterieError, match=r"test targets have the shape .* but \(N,\) is expected"):
        replace(federation, test=column).validate()
    with pytest.raises(CoterieError, match=r"train targets have the shape .* but \(N, 3\) is expected"):
        replace(federation, task="regression").validate()


def test_an_index_stays_inside_the_rows(make_federation: Make) -> None:
    federation = make_federation()
    index = torch.arange(federation.train.total)
    index[0] = len(federation.train.inputs)
    with pytest.raises(CoterieError, match="train index names rows outside"):
        replace(federation, train=replace(federation.train, index=index)).validate()
