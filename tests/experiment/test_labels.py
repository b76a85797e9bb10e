"""Tables and figures go by labels, so no two systems may have the same."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.config import parse_config
from coterie.errors import CoterieError
from coterie.experiment.plan import plan

FEDERATION: dict[str, Any] = {"source": "synthetic", "clients": 3, "partition": {"rule": "natural"}}


def labels(*algorithms: Any) -> list[str]:
    config = parse_config({"federation": FEDERATION, "algorithms": list(algorithms)})
    return [system.label for system in plan(config).systems]


@pytest.mark.parametrize(
    ("algorithms", "said"),
    [
        (
            ({"name": "fedavg", "label": "X"}, {"name": "fedprox", "label": "X"}),
            "algorithms: fedavg and fedprox would both be called 'X'",
        ),
        (({"name": "fedavg", "label": "fedprox"}, "fedprox"), "fedavg and fedprox would both be called 'fedprox'"),
        (({"name": "fedavg", "label": "local"},), "fedavg and local would both be called 'local'"),
        (
            ({"name": "fedavg", "guard": True}, {"name": "fedprox", "label": "fedavg + guard"}),
            r"fedavg guard and fedprox would both be called 'fedavg \+ guard'",
        ),
    ],
)
def test_two_systems_of_one_label_are_refused(algorithms: tuple[Any, ...], said: str) -> None:
    with pytest.raises(CoterieError, match=f"{said}, and results are told apart by that: give one of them another"):
        labels(*algorithms)


def test_other_labels_stay() -> None:
    again = {"name": "fedavg", "label": "mine", "training": {"lr": 0.1}, "guard": True}
    assert labels("fedavg", again) == ["local", "fedavg", "mine"]
