"""Mini-batches: every example once per epoch, whoever else is in the plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from plain import RAGGED, B, batches_of, plan_of, ragged
from torch import Tensor

from coterie.training import BatchPlan, SequentialPlan
from coterie.training.keys import client_keys

NAMES = [f"client {i}" for i in range(len(RAGGED))]


def epochs_of(plan: BatchPlan, client: int, per_epoch: int) -> list[Tensor]:
    batches = batches_of(plan, client)
    return [torch.cat(batches[i : i + per_epoch]) for i in range(0, len(batches), per_epoch or 1)]


def test_every_example_once_per_epoch() -> None:
    data = ragged()
    plan = plan_of(data, epochs=3)
    assert plan.longest == 12
    assert plan.steps.tolist() == [3 * -(-n // B) for n in RAGGED]
    for client, n in enumerate(RAGGED):
        own = list(range(int(data.offsets[client]), int(data.offsets[client + 1])))
        epochs = epochs_of(plan, client, -(-n // B))
        assert len(epochs) == (3 if n else 0)
        for epoch in epochs:
            assert sorted(epoch.tolist()) == own
        sizes = [len(batch) for batch in batches_of(plan, client)]
        assert sizes == 3 * ([B] * (n // B) + [n % B] * (n % B > 0))


def test_epochs_differ() -> None:
    epochs = epochs_of(plan_of(ragged((50,)), epochs=4), 0, 13)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 4


def test_weights_average_over_the_real_examples() -> None:
    plan = plan_of(ragged())
    partial = 0
    for batch in plan:
        assert batch.active == len(batch.sizes) == len(batch.positions)
        for row, size in enumerate(batch.sizes.tolist()):
            expected = [1 / size] * size + [0.0] * (batch.positions.shape[1] - size)
            assert batch.weights[row].tolist() == pytest.approx(expected)
            assert (batch.positions[row, size:] == batch.positions[row, 0]).all()
            partial += size < batch.positions.shape[1]
    assert partial > 0
    assert batch.weights.dtype == torch.float64


def test_rows_come_by_falling_number_of_steps() -> None:
    plan = plan_of(ragged())
    steps = plan.steps[plan.order]
    assert (np.diff(steps) <= 0).all()
    assert [batch.active for batch in plan] == [int((steps > step).sum()) for step in range(plan.longest)]
    assert [batch.step for batch in plan] == list(range(12))


@pytest.mark.parametrize(("n", "kept"), [(B - 1, [B - 1]), (B, [B]), (B + 1, [B]), (3 * B + 2, [B] * 3), (1, [1])])
def test_drop_last_leaves_at_least_one_batch(n: int, kept: list[int]) -> None:
    plan = plan_of(ragged((n,)), epochs=2, drop_last=True)
    assert [len(batch) for batch in batches_of(plan, 0)] == 2 * kept


def test_steps_run_on_into_new_epochs() -> None:
    data = ragged((5, 14, 0))
    by_steps, by_epochs = plan_of(data, steps=6), plan_of(data, epochs=3)
    assert by_steps.steps.tolist() == [6, 6, 0]
    for one, other in zip(batches_of(by_steps, 0), batches_of(by_epochs, 0), strict=True):
        assert one.tolist() == other.tolist()
    for one, other in zip(batches_of(by_steps, 1), batches_of(by_epochs, 1)[:6], strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("options", [{"epochs": 3}, {"steps": 9}])
def test_a_client_has_the_same_batches_in_any_company(options: dict[str, Any]) -> None:
    """Whoever shares the plan, in any order: positions count from the client's own first example."""
    data = ragged()
    keys = client_keys(0, NAMES, 1, "batches:train")
    whole = plan_of(data, **options)
    for chosen in ([1], [4, 1], [5, 4, 3, 2, 1, 0], [0, 2], [2, 3]):
        part = data.select(chosen)
        some = plan_of(part, keys=keys[chosen], **options)
        for place, client in enumerate(chosen):
            expected = [batch - data.offsets[client] for batch in batches_of(whole, client)]
            found = [batch - part.offsets[place] for batch in batches_of(some, place)]
            assert [batch.tolist() for batch in found] == [batch.tolist() for batch in expected]


def test_steps_may_be_asked_for_in_any_order() -> None:
    plan, again = plan_of(ragged()), plan_of(ragged())
    forward = [batch.positions.tolist() for batch in plan]
    assert [plan.batch(step).positions.tolist() for step in range(12)] == forward
    assert [again.batch(step).positions.tolist() for step in reversed(range(12))] == forward[::-1]


def test_keys_decide_the_order() -> None:
    data = ragged((40, 40))
    names = ["ann", "bob"]
    drawn = {}
    for label, seed, who, round, purpose in [
        ("first", 0, names, 1, "batches:train"), ("again", 0, names, 1, "batches:train"),
        ("seed", 1, names, 1, "batches:train"), ("round", 0, names, 2, "batches:train"),
        ("purpose", 0, names, 1, "batches:guidance"), ("name", 0, ["eve", "bob"], 1, "batches:train"),
    ]:  # fmt: skip
        plan = plan_of(data, keys=client_keys(seed, who, round, purpose), epochs=1)
        drawn[label] = [[i % 40 for b in batches_of(plan, client) for i in b.tolist()] for client in (0, 1)]
    assert drawn["first"] == drawn["again"]
    for other in ("seed", "round", "purpose"):
        assert drawn[other][0] != drawn["first"][0]
        assert drawn[other][1] != drawn["first"][1]
    assert drawn["name"][0] != drawn["first"][0]
    assert drawn["name"][1] == drawn["first"][1]
    assert drawn["first"][0] != drawn["first"][1]


def test_a_long_run_keeps_one_order_only() -> None:
    """A client with one example lives through as many epochs as steps; the others' orders are not drawn for it."""
    plan = plan_of(ragged((1, 400)), steps=300)
    held = sum(a.nbytes for a in vars(plan).values() if isinstance(a, np.ndarray))
    for _ in plan:
        pass
    assert sum(a.nbytes for a in vars(plan).values() if isinstance(a, np.ndarray)) == held
    assert not any(isinstance(value, dict | list) for value in vars(plan).values())


def test_sequential_plan_reads_in_stored_order() -> None:
    data = ragged()
    plan = SequentialPlan(data.n.numpy(), data.offsets[:-1].numpy(), B)
    for client in range(data.k):
        own = list(range(int(data.offsets[client]), int(data.offsets[client + 1])))
        assert [i for batch in batches_of(plan, client) for i in batch.tolist()] == own


def test_epochs_or_steps() -> None:
    with pytest.raises(ValueError, match="epochs or steps"):
        plan_of(ragged(), epochs=1, steps=1)
    with pytest.raises(ValueError, match="epochs or steps"):
        plan_of(ragged(), epochs=None)


def test_no_clients_and_no_examples() -> None:
    assert list(plan_of(ragged((0, 0)))) == []
    none = np.zeros(0, dtype=np.int64)
    assert list(BatchPlan(none, none, none.astype(np.uint64), B, epochs=1)) == []
