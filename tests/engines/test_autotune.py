"""Choosing the executor by measurement: what is measured, and that the numbers do not depend on it."""

from __future__ import annotations

import pytest
import torch

from coterie.engines import autotune
from coterie.engines.autotune import fastest
from coterie.federation.data import ClientData
from coterie.models import Stack, build_model
from coterie.models.stack import Executor
from coterie.training import TrainingSettings, cross_entropy

TRAINING = TrainingSettings(epochs=1, batch_size=4, lr=0.1)


def data() -> ClientData:
    draw = torch.Generator().manual_seed(0)
    counts = torch.tensor([0, 9, 9, 15, 21])  # the second client has nothing
    return ClientData(torch.randn(21, 6, generator=draw), torch.randint(0, 3, (21,), generator=draw), counts)


def stack_with(executor: Executor) -> Stack:
    return Stack(lambda: build_model("mlp", (6,), 3, hidden=[5]), (6,), executor=executor)


@pytest.mark.parametrize(("seconds", "chosen"), [
    ({"stacked": 1.0, "vmap": 2.0, "loop": 3.0}, "stacked"),
    ({"stacked": 1.0, "vmap": 0.95, "loop": 0.92}, "stacked"),  # not clearly faster
    ({"stacked": 1.0, "vmap": 0.5, "loop": 0.8}, "vmap"),
    ({"stacked": 1.0, "vmap": 0.8, "loop": 0.5}, "loop"),
])  # fmt: skip
def test_the_fastest_is_taken_where_it_is_clearly_faster(
    seconds: dict[str, float], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "_seconds", lambda stack, *_: seconds[stack.executor])
    assert fastest(stack_with, data(), TRAINING, cross_entropy).executor == chosen


def test_what_cannot_run_is_left_out() -> None:
    """A recurrent network has no stacked form and no batching rule: only the loop is left."""

    def recurrent(executor: Executor) -> Stack:
        return Stack(lambda: build_model("gru", (6,), 3, hidden=4), (6,), executor=executor)

    assert fastest(recurrent, data(), TRAINING, cross_entropy).executor == "loop"


def test_a_measurement_is_a_time() -> None:
    assert 0.0 < autotune._seconds(stack_with("auto"), data(), TRAINING, cross_entropy) < 10.0
