"""It learns: rotated digits, in seconds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from coterie.engines import Simulation
from coterie.federation import build_federation
from coterie.federation.federation import Federation
from coterie.models import ModelSpec
from coterie.testing.subject import Broken, Subject, simulation
from coterie.training import TrainingSettings

TRAINING = TrainingSettings(epochs=3, batch_size=16, lr=0.1, momentum=0.5)
GAIN = 0.3


@cache
def digits() -> Federation:
    """Eight clients with 30 handwritten digits each, 20 degrees apart."""
    rotated = {"rule": "rotation", "clients": 8, "degrees": 20}
    return build_federation(
        {"source": "digits", "partition": rotated, "train": 30, "validation": 20}, seed=0, data_dir=None
    )


def accuracies(subject: Subject) -> tuple[float, float]:
    """Mean test accuracy of rotated digits before and after twenty rounds."""
    options = dict(subject.claims.learns)
    training = replace(TRAINING, lr=options.pop("training.lr", TRAINING.lr))
    sim = simulation(
        digits(), subject.bare(options), ModelSpec("mlp", {"hidden": [32]}), Simulation,
        rounds=20, evaluate_every=20, dtype="float32", training=subject.training(training),
    )  # fmt: skip
    before = sim.initial_report().evaluations["test"]["accuracy"].mean()
    while not sim.finished:
        report = sim.advance()
    return float(before), float(report.evaluations["test"]["accuracy"].mean())


def learns(subject: Subject) -> None:
    """Twenty rounds on rotated digits raise the mean test accuracy from chance by 30 points and more."""
    before, after = accuracies(subject)
    if after < before + GAIN:
        raise Broken(
            f"twenty rounds on rotated digits gain {100 * GAIN:.0f} points of accuracy",
            f"{100 * before:.1f} % became {100 * after:.1f} %",
            "is the evaluated model the trained one? If its defaults are slow, give claims.learns",
        )
