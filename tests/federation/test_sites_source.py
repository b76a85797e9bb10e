"""Experiments whose data are at real sites."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.config import parse_config
from coterie.errors import CoterieError
from coterie.experiment import Experiment


def config(**more: Any) -> Any:
    return parse_config({"federation": {"source": "sites", **more}})


def test_nothing_has_to_be_said_of_data_at_sites() -> None:
    section = config(seed=3)
    assert section.as_dict()["federation"]["seed"] == 3
    assert not {"train", "validation", "test"} & section.as_dict()["federation"].keys()
    assert parse_config(section.as_dict()) == section


@pytest.mark.parametrize(
    "more",
    [{"validation": 0.1}, {"partition": {"rule": "iid", "clients": 3}}, {"normalise": "standard"}, {"resize": 8}],
)
def test_what_would_mean_nothing_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(CoterieError, match=f"{next(iter(more))} means nothing where source is sites"):
        config(**more)


def test_they_cannot_be_simulated() -> None:
    with pytest.raises(CoterieError, match=r"^federation.source: sites says that the data are at real sites"):
        Experiment(config()).run()


TOGETHER: dict[str, Any] = {"preprocessing": "federated", "target": "state", "labels": ["healthy", "sick"]}


def test_tables_that_sites_prepare_together_have_the_options_of_tables() -> None:
    section = config(**TOGETHER, missing="mark", categorical=["ward"], split="part")
    assert parse_config(section.as_dict()) == section
    assert section.as_dict()["federation"]["categorical"] == ["ward"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"missing": "mark"}, "missing means nothing where sites follow a schema.yaml"),
        ({"preprocessing": "federated", "labels": ["a", "b"]}, "needs target"),
        ({"preprocessing": "federated", "target": "state"}, "needs the classes under labels"),
        ({**TOGETHER, "labels": None, "task": "regression", "classes": 2}, "needs the classes under labels"),
        ({**TOGETHER, "group": "patient"}, "group is for simulations"),
        ({**TOGETHER, "preprocessing": "client"}, "preprocessing"),
    ],
)
def test_columns_that_sites_cannot_prepare(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence):
        config(**more)
