from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from dividing import assert_disjoint, assert_same, counts, divide
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.datasets import SOURCES, Source
from coterie.federation.examples import Examples
from coterie.federation.partition import Division
from coterie.federation.partition.blocks import _fill, by_blocks, mixed_block

Make = Callable[..., Examples]
NATURAL = {"rule": "natural"}


@pytest.fixture
def visits(make_examples: Make) -> Examples:
    """160 visits of 2 classes at two hospitals; 40 patients of 4 visits each, all of one hospital."""
    examples = make_examples([80, 80], name="visits")
    patient = np.arange(160) // 4
    patient = patient.reshape(2, 20, 4).transpose(1, 0, 2).ravel()  # each hospital has patients of both classes
    order = np.argsort(patient, kind="stable")
    hospital = np.where(np.isin(patient, patient[order[:80]]), "east", "west")
    return replace(examples, groups={"hospital": hospital.tolist()}, blocks=[f"p{one}" for one in patient])


def splits(division: Division) -> tuple[list[np.ndarray], ...]:
    return list(division.train), list(division.validation), list(division.test)


def sides_of(division: Division, blocks: np.ndarray) -> list[set[str]]:
    return [{blocks[row] for rows in split for row in rows} for split in splits(division)]


def test_no_block_is_on_two_sides(visits: Examples) -> None:
    division = divide(visits, NATURAL)
    train, validation, test = sides_of(division, np.asarray(visits.blocks))
    assert not train & validation
    assert not (train | validation) & test
    assert len(train | validation | test) == 40
    assert_disjoint(division)


def test_sizes_and_classes_are_as_near_as_blocks_allow(visits: Examples) -> None:
    division = divide(visits, NATURAL)
    assert [len(rows) for rows in division.train] == [48, 48]
    assert [len(rows) for rows in division.test] == [16, 16]
    held = counts(visits, division.test)
    assert held.sum(0).tolist() == [16, 16]


def test_the_same_draw_gives_the_same_split_and_another_another(visits: Examples) -> None:
    assert_same(divide(visits, NATURAL, seed=3), divide(visits, NATURAL, seed=3))
    with pytest.raises(AssertionError):
        assert_same(divide(visits, NATURAL, seed=3), divide(visits, NATURAL, seed=4))


def test_a_block_of_several_clients_is_on_one_side_of_all(visits: Examples) -> None:
    division = divide(visits, {"rule": "iid", "clients": 4})
    assert mixed_block(splits(division), visits.blocks or ()) is None
    assert min(len(rows) for split in splits(division) for rows in split) > 0


def test_a_limit_of_training_leaves_the_rest_unused(visits: Examples) -> None:
    division = divide(visits, NATURAL, train=10, validation=0)
    assert [len(rows) for rows in division.train] == [10, 10]
    assert [len(rows) for rows in division.validation] == [0, 0]
    assert [len(rows) for rows in division.test] == [16, 16]


def test_few_blocks_go_to_the_test_and_to_training_first(make_examples: Make) -> None:
    examples = replace(make_examples([20, 20]), groups={"ward": ["a"] * 40})
    two = divide(replace(examples, blocks=[0] * 30 + [1] * 10), NATURAL)
    assert [len(split[0]) for split in splits(two)] == [30, 0, 10]
    with pytest.raises(CoterieError, match=r"Client 'a' gets no test examples, for its 40 examples are only 1 block"):
        divide(replace(examples, blocks=[0] * 40), NATURAL)


def test_the_latest_are_for_the_test(make_examples: Make) -> None:
    examples = replace(make_examples([30, 30]), groups={"ward": ["a", "b"] * 30})
    timed = replace(examples, order=np.arange(60)[::-1].tolist())
    division = divide(timed, NATURAL)
    for train, validation, test in zip(*splits(division), strict=True):
        assert [len(train), len(validation), len(test)] == [18, 6, 6]
        assert train.min() > validation.max()  # a late row is an early time
        assert validation.min() > test.max()
    limited = divide(timed, NATURAL, train=5)
    assert sorted(limited.train[0]) == sorted(division.train[0])[:5]


def test_blocks_in_time_stay_whole(make_examples: Make) -> None:
    examples = replace(make_examples([20, 20]), groups={"ward": ["a"] * 40})
    blocks = [row // 8 for row in range(40)]
    division = divide(replace(examples, order=list(range(40)), blocks=blocks), NATURAL)
    assert [sorted({row // 8 for row in split[0]}) for split in splits(division)] == [[0, 1, 2], [3], [4]]
    two = divide(replace(examples, order=list(range(40)), blocks=[row // 35 for row in range(40)]), NATURAL)
    assert [len(split[0]) for split in splits(two)] == [35, 0, 5]


def test_a_block_of_several_clients_in_time_counts_at_its_latest(make_examples: Make) -> None:
    ward = ["north"] * 21 + ["south"] * 21
    days = [*range(1, 21), 0, *range(1, 21), 99]  # the last row of each ward is of one patient
    patients = [*range(20), "p", *range(20, 40), "p"]
    examples = replace(make_examples([42]), groups={"ward": ward}, blocks=list(map(str, patients)), order=days)
    division = divide(examples, NATURAL)
    train, _, test = splits(division)
    assert 20 in test[0]
    assert 41 in test[1]
    assert mixed_block(splits(division), examples.blocks or []) is None
    for rows, tested in zip(train, test, strict=True):
        assert max(days[row] for row in rows) < min(days[row] for row in tested if patients[row] != "p")


def test_a_rule_that_tears_blocks_apart_is_refused(visits: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = replace(visits, inputs=visits.inputs.new_zeros(160, 1, 4, 4))
    monkeypatch.setitem(SOURCES, "visits", Source("visits", "toy", "", lambda data_dir, seed: pictures))
    section = {"source": "visits", "partition": {"rule": "rotation", "clients": 2}, "train": 40, "validation": 20}
    with pytest.raises(CoterieError, match=r"The rule rotation puts examples of the block 'p\d+' of 'visits' into two"):
        build_federation({**section, "test": 10}, seed=0)
    assert build_federation({"source": "visits", "partition": NATURAL}, seed=0).k == 2


def test_lengths_must_agree(make_examples: Make) -> None:
    with pytest.raises(CoterieError, match="has 20 inputs but 3 blocks"):
        replace(make_examples([10, 10]), blocks=[1, 2, 3])
    with pytest.raises(CoterieError, match="has 20 inputs but 1 times"):
        replace(make_examples([10, 10]), order=[1])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=6, max_size=30), st.integers(1, 4), st.integers(0, 99))
def test_whole_blocks_whatever_their_sizes(sizes: list[int], classes: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    blocks = np.repeat(np.arange(len(sizes)), sizes)
    n = len(blocks)
    share = draw.permutation(n)
    wanted = np.array([[n - 2 * max(1, n // 5), max(1, n // 5), max(1, n // 5)]])
    parts = by_blocks([share], ["a"], draw.integers(classes, size=n), wanted, classes, blocks)
    assert mixed_block(parts, blocks.tolist()) is None
    assert sorted(np.concatenate([part[0] for part in parts])) == list(range(n))
    assert min(len(part[0]) for part in parts) > 0
    # no split is off by more than the blocks are large
    assert max(abs(len(part[0]) - want) for part, want in zip(parts, wanted[0], strict=True)) <= 2 * max(sizes)


class Unsought(np.ndarray):
    """Whose each row is, which nobody may seek through."""

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        pytest.fail("all rows are compared with one client")


def test_spare_blocks_are_found_without_seeking_through_all_rows() -> None:
    """The first client's smallest block goes to the test; the second, in between, has all that it needs."""
    owner = np.array([0, 1, 0, 1, 0, 0, 1])
    block = np.array([0, 2, 1, 3, 0, 0, 3])
    side = np.array([0, 0, 0, 2])
    _fill(side, block, owner.view(Unsought), np.array([[3, 0, 1], [1, 0, 2]]), ["a", "b"])
    assert side.tolist() == [0, 2, 0, 2]
