from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation
from coterie.federation.datasets import find_source
from coterie.federation.federation import SPLITS
from coterie.federation.partition.rotation import Rotation
from coterie.federation.rotate import rotate


def build(source: str = "digits", data_dir: Path | None = None, seed: int = 0, **section: Any) -> Federation:
    partition = {"rule": "rotation", **section.pop("partition")}
    return build_federation({"source": source, "partition": partition, **section}, seed=seed, data_dir=data_dir)


def sizes(federation: Federation) -> list[set[int]]:
    return [set(federation.split(split).n.tolist()) for split in SPLITS]


def rows(source: str, data_dir: Path | None, partition: dict[str, Any], section: dict[str, Any]) -> list[np.ndarray]:
    """Rows of the source that the rule gives out, all clients joined, for each split."""
    rule = Rotation(**partition)
    given = {"train": None, "validation": None, "test": None, **section}
    generator = np.random.Generator(np.random.PCG64(0))
    division = rule.divide(find_source(source).load(data_dir), rule.resolve(given), generator)
    return [np.concatenate(split) for split in (division.train, division.validation, division.test)]


def test_quickstart() -> None:
    federation = build(partition={"clients": 20}, train=40, validation=20)
    assert sizes(federation) == [{40}, {20}, {29}]
    assert federation.source["clients"]["angle"] == [18.0 * i for i in range(20)]
    assert federation.feature_shape == (1, 8, 8)
    assert federation.names[7] == "client-07"


def test_every_image_is_a_turned_image_of_the_source_used_once() -> None:
    federation = build(partition={"clients": 20}, train=40, validation=20)
    source = torch.from_numpy(load_digits().images.astype(np.float32))[:, None] / 16
    labels = torch.from_numpy(load_digits().target)
    used = []
    for i in range(20):
        turned = rotate(source, 18.0 * i)
        known = {
            (image.numpy().tobytes(), int(label)): row
            for row, (image, label) in enumerate(zip(turned, labels, strict=True))
        }
        for split in SPLITS:
            images, targets = federation.split(split).client(i)
            keys = [(image.numpy().tobytes(), int(label)) for image, label in zip(images, targets, strict=True)]
            used += [known[key] for key in keys]
    # digits holds no two equal images, so a repeated row would be a leak between clients or splits
    assert len(used) == len(set(used)) == 20 * (40 + 20 + 29)


@pytest.mark.data
@pytest.mark.parametrize(("source", "k", "test"), [("mnist", 36, 277), ("fashion-mnist", 72, 138)])
def test_published_balanced_sizes(real_data: Callable[[str], Path], source: str, k: int, test: int) -> None:
    folder = real_data(source)
    federation = build(source, folder, partition={"clients": k})
    assert sizes(federation) == [{128}, {64}, {test}]
    assert federation.source["clients"]["angle"][1] == 360 / k
    assert federation.train.inputs.dtype == torch.uint8
    train, validation, tests = rows(source, folder, {"clients": k}, {})
    assert len(np.unique(np.concatenate([train, validation]))) == k * 192
    assert max(train.max(), validation.max()) < 60_000 <= tests.min()
    assert len(np.unique(tests)) == k * test


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "k", "big", "train", "validation", "test"),
    [("mnist", 36, 18, 35_520, 17_760, 277), ("fashion-mnist", 72, 36, 30_912, 15_456, 138)],
)
def test_published_imbalanced_sizes(
    real_data: Callable[[str], Path], source: str, k: int, big: int, train: int, validation: int, test: int
) -> None:
    folder = real_data(source)
    federation = build(source, folder, partition={"clients": k, "big_client": "middle"})
    assert int(federation.train.n[big]) == train
    assert int(federation.validation.n[big]) == validation
    assert federation.source["clients"]["angle"][big] == 180
    others = federation.select([i for i in range(k) if i != big])
    assert sizes(others) == [{128}, {64}, {test}]
    parts = rows(source, folder, {"clients": k, "big_client": big}, {})
    assert len(np.unique(np.concatenate(parts[:2]))) == 60_000  # complete and disjoint


@pytest.mark.data
def test_four_clients_of_figure_2(real_data: Callable[[str], Path]) -> None:
    partition = {"angles": [0, 30, 60, 90], "train_sizes": [32, 32, 32, 256]}
    federation = build("mnist", real_data("mnist"), partition=partition, test=2000)
    assert federation.train.n.tolist() == [32, 32, 32, 256]
    assert federation.test.n.tolist() == [2000] * 4
    assert federation.source["clients"]["angle"] == [0, 30, 60, 90]


@pytest.mark.data
def test_mnist_is_turned_from_its_official_images(real_data: Callable[[str], Path]) -> None:
    folder = real_data("mnist")
    federation = build("mnist", folder, partition={"clients": 4}, train=16, validation=8)
    examples = find_source("mnist").load(folder)
    train, _, _ = rows("mnist", folder, {"clients": 4}, {"train": 16, "validation": 8})
    third = train[48:64]
    assert torch.equal(federation.train.inputs[48:64], torch.rot90(examples.inputs[third], 3, (2, 3)))
    assert torch.equal(federation.train.targets[48:64], examples.targets[third])
    assert federation.train.client(3)[0].max() <= 1


def test_big_client_of_a_single_pool_leaves_the_test_images() -> None:
    federation = build(partition={"clients": 4, "big_client": 0}, train=30, validation=15, test=50)
    rest = 1797 - 4 * 50 - 3 * 45
    assert federation.train.n.tolist() == [2 * rest // 3, 30, 30, 30]
    assert federation.validation.n.tolist() == [rest - 2 * rest // 3, 15, 15, 15]
    assert federation.test.n.tolist() == [50] * 4


def test_step_and_sizes_by_client() -> None:
    partition = {"clients": 3, "degrees": 7.5, "validation_sizes": [0, 4, 8], "interpolation": "bilinear"}
    federation = build(partition=partition, train=5, test=6)
    assert federation.source["clients"]["angle"] == [0.0, 7.5, 15.0]
    assert federation.validation.n.tolist() == [0, 4, 8]
    assert federation.test.n.tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"partition": {"clients": 200}},
            "wants 38,400 images for 200 clients .* 'digits' has only 1,797: ask for fewer",
        ),
        ({"partition": {"clients": 5}, "test": 400}, "wants 2,960 images .* test 2,000.* only 1,797"),
        (
            {"partition": {"clients": 9}, "validation": 71},
            "at least 1 test images for each of 9 clients.* has 6 left",
        ),
        ({"partition": {"clients": 3, "big_client": 1}}, "has no official test set: give test as a number"),
        (
            {"partition": {"clients": 12, "big_client": 1}, "test": 20},
            "Nothing is left for big_client: the other 11",
        ),
        ({"partition": {"clients": 3, "big_client": 3}}, "big_client is 3 but the clients are 0 .. 2"),
        ({"partition": {"clients": 3, "angles": [1, 2]}}, "angles has 2 values for 3 clients"),
        ({"partition": {"clients": 3, "train_sizes": [1, 2]}}, "train_sizes has 2 values for 3 clients"),
        ({"partition": {"angles": [1, 2], "degrees": 3}}, "either degrees or angles"),
        (
            {"partition": {"clients": 2, "big_client": 0, "train_sizes": [1, 2]}},
            "big_client sets the sizes by itself",
        ),
        (
            {"partition": {"clients": 2, "train_sizes": [1, 2]}, "train": 3},
            "either train or partition.train_sizes",
        ),
        (
            {"partition": {"clients": 2, "validation_sizes": [1, 2]}, "validation": 3},
            "either validation or partition",
        ),
        (
            {"partition": {"clients": 2}, "train": 0.5},
            "train must be a number of images under the rule rotation",
        ),
        ({"partition": {"clients": 2}, "test": "official"}, "test must be a number of images or 'rest'"),
        ({"partition": {"clients": 2}, "train": 0}, "train and test must be at least 1"),
        ({"partition": {"clients": 0}}, "federation.partition.clients: .*greater than or equal to 1"),
    ],
)
def test_impossible_rotations(section: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build(**section)


def test_official_test_set_can_run_out(idx_folder: Path) -> None:
    with pytest.raises(CoterieError, match="wants 11 test images for each of 2 clients, but 'mnist' has 20 left"):
        build("mnist", idx_folder, partition={"clients": 2}, train=2, validation=2, test=11)


def test_rotation_needs_images(make_examples: Any) -> None:
    rule = Rotation(clients=2)
    given = rule.resolve({"train": 1, "validation": 1, "test": 1})
    with pytest.raises(CoterieError, match=r"needs images .* 'toy' has inputs of shape \(1,\)"):
        rule.divide(make_examples([9, 9]), given, np.random.default_rng(0))
