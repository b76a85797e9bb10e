"""Do they learn? Rotated digits, in seconds."""

from __future__ import annotations

from functools import cache

import pytest
from method_cases import Case, every_case

from coterie.contract import make_algorithm
from coterie.engines import TrainingSettings
from coterie.federation import build_federation
from coterie.federation.federation import Federation
from coterie.models import ModelSpec
from toys import simulation

TRAINING = TrainingSettings(epochs=3, batch_size=16, lr=0.1, momentum=0.5)


@cache
def digits() -> Federation:
    rotated = {"rule": "rotation", "clients": 8, "degrees": 20}
    return build_federation(
        {"source": "digits", "partition": rotated, "train": 30, "validation": 20}, seed=0, data_dir=None
    )


@cache
def accuracy(name: str, variant: str | None = None, **options: float) -> tuple[float, float]:
    """Mean test accuracy before and after training."""
    sim = simulation(
        digits(), make_algorithm(name, variant, **options), ModelSpec("mlp", {"hidden": [32]}), rounds=20,
        evaluate_every=20, dtype="float32", training=TRAINING,
    )  # fmt: skip
    before = sim.initial_report()
    while not sim.finished:
        report = sim.advance()
    return float(before.evaluations["test"]["accuracy"].mean()), float(report.evaluations["test"]["accuracy"].mean())


@every_case
def test_every_method_learns(case: Case) -> None:
    before, after = accuracy(case.name, case.variant, **case.learning)
    assert after > 0.45
    assert after > before + 0.3


@pytest.mark.parametrize(
    ("name", "variant", "options"),
    [("fedora", "released", {}), ("fedora", "paper", {}), ("ditto", None, {"lambda_": 0.1})],
)
def test_personalised_methods_are_no_worse_than_training_alone(
    name: str, variant: str | None, options: dict[str, float]
) -> None:
    assert accuracy(name, variant, **options)[1] > accuracy("local")[1] - 0.03
