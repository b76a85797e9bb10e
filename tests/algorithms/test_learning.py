"""Do personalised methods pay? Rotated digits, in seconds: they are no worse than training alone."""

from __future__ import annotations

from functools import cache

import pytest

from coterie.testing.check import subjects_of
from coterie.testing.identities.learning import accuracies


@cache
def accuracy(name: str, variant: str | None = None) -> float:
    """Mean test accuracy after training, with the defaults."""
    (subject,) = (each for each in subjects_of(name) if variant in (None, each.variant))
    return accuracies(subject)[1]


@pytest.mark.parametrize(("name", "variant"), [("fedora", "released"), ("fedora", "paper"), ("ditto", None)])
def test_personalised_methods_are_no_worse_than_training_alone(name: str, variant: str | None) -> None:
    assert accuracy(name, variant) > accuracy("local") - 0.03
