"""Do personalised methods pay? Rotated digits, in seconds: they are no worse than training alone.

Eight clients with 30 images each, on which collaboration pays little. Those left out fall behind LOCAL here, with their
defaults: the pages on tuned settings and results have the figures.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from coterie.testing.check import subjects_of
from coterie.testing.identities.learning import accuracies
from coterie.testing.subject import Subject

NO_WORSE: list[tuple[str, str | None, dict[str, Any]]] = [
    ("fedora", "released", {}),
    ("fedora", "paper", {}),
    ("feddwa", None, {}),
    ("federico", "decentralised", {}),
    ("fedamp", "attention", {}),
    ("fedamp", "heuristic", {}),
    ("fedfomo", None, {}),
    ("fedu", None, {}),
    ("mocha", None, {}),
    ("l2gd", None, {}),
    ("lg-fedavg", None, {}),
    ("fesem", None, {}),
    ("ditto", None, {"lambda": 0.1}),
    ("apfl", None, {"alpha": 0.75}),
    ("fedper", None, {"training.lr": 0.3}),
    ("fedrep", None, {"head_epochs": 5, "training.lr": 0.4}),
]


@cache
def accuracy(name: str, variant: str | None, settings: tuple[tuple[str, Any], ...]) -> float:
    """Mean test accuracy after training."""
    (subject,) = (each for each in subjects_of(name) if variant in (None, each.variant))
    claims = replace(subject.claims, learns=dict(settings))
    cls = type(subject.cls.__name__, (subject.cls,), {"claims": claims, "__doc__": subject.cls.__doc__})
    return accuracies(Subject(cls, subject.variant))[1]


@pytest.mark.parametrize(("name", "variant", "options"), NO_WORSE, ids=[f"{n}-{v}" for n, v, _ in NO_WORSE])
def test_personalised_methods_are_no_worse_than_training_alone(
    name: str, variant: str | None, options: dict[str, Any]
) -> None:
    alone = {key: value for key, value in options.items() if key == "training.lr"}
    assert accuracy(name, variant, tuple(options.items())) > accuracy("local", None, tuple(alone.items())) - 0.03
