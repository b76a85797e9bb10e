"""Cross-fitting: every example that is not for testing validates in exactly one fold."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation
from coterie.federation.arrays import examples_of_federation
from coterie.federation.examples import Examples
from coterie.federation.folds import Fold, folded, refolded
from coterie.federation.partition import Division

SECTION: dict[str, Any] = {"source": "digits", "partition": {"rule": "dirichlet", "clients": 5, "alpha": 0.5}}


def folds(count: int, section: dict[str, Any] = SECTION, seed: int = 3) -> list[Federation]:
    """The federation in all its folds."""
    return [build_federation({**section, "fold": {"index": i, "of": count}}, seed=seed) for i in range(count)]


def rows_of(federation: Federation, split: str, client: int) -> list[int]:
    """Rows of the source that a client has in a split."""
    data = federation.split(split)  # type: ignore[arg-type]
    start, stop = int(data.offsets[client]), int(data.offsets[client + 1])
    assert data.index is not None
    return sorted(data.index[start:stop].tolist())


def test_every_example_validates_once_and_tests_stay() -> None:
    """Training and validation examples of each fold are those of the plain division, dealt anew."""
    plain = build_federation(SECTION, seed=3)
    for client in range(plain.k):
        pool = sorted(rows_of(plain, "train", client) + rows_of(plain, "validation", client))
        validated: list[int] = []
        for federation in folds(4):
            train, validation = rows_of(federation, "train", client), rows_of(federation, "validation", client)
            assert sorted(train + validation) == pool
            assert rows_of(federation, "test", client) == rows_of(plain, "test", client)
            assert abs(len(validation) - len(pool) / 4) < 1
            validated += validation
        assert sorted(validated) == pool


def test_classes_are_dealt_evenly() -> None:
    """No part has two more of a class than another."""
    counts = np.stack([federation.class_counts("validation").numpy() for federation in folds(4)])
    assert (counts.max(0) - counts.min(0)).max() <= 1


def test_a_fold_that_does_not_exist_is_refused() -> None:
    """Of three folds the last is number 2."""
    with pytest.raises(CoterieError, match="of 3 folds the last has the index 2"):
        build_federation({**SECTION, "fold": {"index": 3, "of": 3}}, seed=0)


def test_seeds_give_other_folds_and_equal_seeds_equal_ones() -> None:
    """The deal depends on the seed of the division alone."""
    once, again, other = (Counter(rows_of(folds(3, seed=seed)[0], "validation", 0)) for seed in (1, 1, 2))
    assert once == again != other


def divided(**more: Any) -> tuple[Examples, Division]:
    """Two clients with ten examples each, of which the last two are for testing."""
    inputs = torch.zeros(20, 1)
    examples = Examples("made", inputs, torch.zeros(20, 1), classes=1, task="regression", **more)
    train, validation, test = ([np.arange(a, b) + 10 * i for i in (0, 1)] for a, b in ((0, 6), (6, 8), (8, 10)))
    return examples, Division(train, validation, test)


def test_blocks_stay_whole_even_where_two_clients_share_one() -> None:
    """Blocks of two rows; block 0 is owned by both clients."""
    blocks = [0, 0, 1, 1, 2, 2, 3, 3, 9, 9, 0, 0, 4, 4, 5, 5, 6, 6, 9, 9]
    examples, division = divided(blocks=blocks)
    seen = []
    for index in range(4):
        fold = folded(division, examples, Fold(index=index, of=4), seed=0)
        validating = {blocks[row] for rows in fold.validation for row in rows}
        assert not validating & {blocks[row] for rows in fold.train for row in rows}
        seen += sorted(validating)
    assert sorted(seen) == [0, 1, 2, 3, 4, 5, 6]


def test_in_the_order_of_time_parts_are_periods() -> None:
    """Times fall, so that the first part is the last rows of the pool."""
    examples, division = divided(order=list(range(20, 0, -1)))
    fold = folded(division, examples, Fold(index=0, of=4), seed=0)
    assert [rows.tolist() for rows in fold.validation] == [[6, 7], [16, 17]]


def test_a_client_with_one_block_keeps_what_it_has() -> None:
    """It would have nothing left to train on."""
    examples, division = divided(blocks=[0] * 8 + [9] * 2 + list(range(20, 30)))
    fold = folded(division, examples, Fold(index=1, of=2), seed=0)
    assert fold.train[0].tolist() == division.train[0].tolist()
    assert len(fold.validation[1]) == 4


def test_a_federation_in_memory_is_dealt_anew() -> None:
    """Training and validation examples of a client, whatever tensors they lie in, validate once in all folds."""
    clients = {name: (torch.randn(n, 3), torch.arange(n) % 2) for name, n in (("a", 20), ("b", 13))}
    parts = {
        name: {"train": (x[:8], y[:8]), "validation": (x[8:10], y[8:10]), "test": (x[10:], y[10:])}
        for name, (x, y) in clients.items()
    }
    for federation in (Federation.from_arrays(clients), Federation.from_arrays(parts)):
        for client in range(2):
            pool = torch.cat([split.client(client)[0] for split in (federation.train, federation.validation)])
            folds = [refolded(federation, Fold(index=i, of=3), 0).validate() for i in range(3)]
            validated = torch.cat([fold.validation.client(client)[0] for fold in folds])
            assert torch.equal(validated.sort(0).values, pool.sort(0).values)
            for fold in folds:
                assert torch.equal(fold.test.client(client)[0], federation.test.client(client)[0])
                assert len(fold.train.client(client)[0]) + len(fold.validation.client(client)[0]) == len(pool)


@pytest.mark.parametrize("options", [{"group": "patient", "ignore": ["day"]}, {"group": "patient", "time": "day"}])
def test_blocks_of_a_federation_in_memory_stay_whole(options: dict[str, Any]) -> None:
    """Patients with four rows each; also for some of the clients alone, whose rows lie among the others'."""
    rows = np.arange(120)
    frame = pd.DataFrame(
        {"ward": rows % 3, "patient": rows // 12 * 3 + rows % 3, "day": -rows, "x": rows, "y": rows / 120}
    )
    whole = Federation.from_frame(frame, client="ward", target="y", preprocessing="none", task="regression", **options)
    for federation in (whole, whole.select([2, 0])):
        for client in range(federation.k):
            pool = {split: patients(federation, split, client) for split in ("train", "validation", "test")}
            validated = []
            for index in range(3):
                fold = refolded(federation, Fold(index=index, of=3), 0)
                validating = patients(fold, "validation", client)
                assert patients(fold, "train", client) == (pool["train"] | pool["validation"]) - validating
                validated += sorted(validating)
                if "time" in options and index == 0:  # the latest rows are tested on, so these are the earliest
                    assert min(validating) > max(patients(fold, "train", client) | pool["test"])
            assert sorted(validated) == sorted(pool["train"] | pool["validation"])


def patients(federation: Federation, split: str, client: int) -> set[int]:
    """Whose rows a client has in a split."""
    rows = federation.split(split).client(client)[0][:, 0].long()  # type: ignore[arg-type]
    return set((rows // 12 * 3 + rows % 3).tolist())


def test_what_a_function_gives_keeps_its_blocks() -> None:
    """A federation whose split is its own says of every example which block it is of."""
    clients = {name: (torch.arange(24.0)[:, None], torch.arange(24) % 2) for name in "ab"}
    blocks = {name: [f"{name}{i // 4}" for i in range(24)] for name in "ab"}
    federation = Federation.from_arrays(clients, blocks=blocks)
    examples = examples_of_federation("python", federation.select([1]))
    assert examples.blocks is not None
    pairs = {(int(row) // 4, block) for row, block in zip(examples.inputs[:, 0], examples.blocks, strict=True)}
    assert len(pairs) == 6


def test_blocks_are_known_of_both_parts_or_of_none() -> None:
    federation = Federation.from_arrays({"a": (torch.zeros(9, 1), torch.arange(9) % 2)}, blocks={"a": range(9)})
    with pytest.raises(CoterieError, match="Either training or validation data have blocks"):
        replace(federation, train=replace(federation.train, blocks=None))
    with pytest.raises(CoterieError, match="one int64 tensor with a number for each of the 9 inputs"):
        replace(federation.train, blocks=torch.arange(8))
