"""Which data a method may look at, and that it uses all of its training data."""

from __future__ import annotations

from dataclasses import replace

import torch

from coterie.engines import Participation
from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.testing.subject import BATCHES, Broken, Subject, played, predicted, run
from coterie.testing.toys import RAGGED, changed_inputs, classified


def test_data(subject: Subject) -> None:
    """Other test labels leave the models and the choice of the reported round unchanged."""
    shuffled = replace(RAGGED.test, targets=(RAGGED.test.targets + 1) % RAGGED.classes)
    settings = {"rounds": 4, "evaluate_every": 1, "keep_best": "best_val"}
    honest, _ = played(subject, RAGGED, **settings)
    other, _ = played(subject, replace(RAGGED, test=shuffled), **settings)
    if honest.report_round != other.report_round or not torch.equal(predicted(honest), predicted(other)):
        raise Broken(
            "test labels decide nothing", "other test labels give other models", "test data reach the training"
        )


def validation_data(subject: Subject) -> None:
    """Validation data decide something exactly where the method claims to use them."""
    inputs = changed_inputs(RAGGED.validation, lambda x: 3.0 * x.flip(0) - 1.0, torch.arange(RAGGED.validation.total))
    other = replace(inputs, targets=(inputs.targets + 1) % RAGGED.classes)
    one = predicted(played(subject, RAGGED, rounds=4, training=BATCHES)[0])
    two = predicted(played(subject, replace(RAGGED, validation=other), rounds=4, training=BATCHES)[0])
    used = one.shape != two.shape or not torch.equal(one, two)
    if subject.claims.validation and not used:
        hint = "what is called validation is drawn from the training data, or it is measured and then not used"
        raise Broken("other validation data give other models, as claimed", "the models are the same", hint)
    if used and not subject.claims.validation:
        hint = "training measures on the validation split: say so by claims.validation"
        raise Broken("validation data decide nothing in training", "other validation data give other models", hint)


def examples(subject: Subject) -> None:
    """Every training example is used in an epoch: with any one NaN its client fails, is named, and harms no other."""
    federation = classified((7, 4, 9, 5))
    begin, end = int(federation.train.offsets[1]), int(federation.train.offsets[2])
    for position in range(begin, end):
        spoilt = changed_inputs(federation.train, lambda x: x * torch.nan, torch.tensor([position]))
        sim = subject.simulation(replace(federation, train=spoilt), rounds=1, training=replace(BATCHES, epochs=1))
        failed = {failure.client for report in run(sim) for failure in report.failures}
        number = f"example {position - begin + 1} of {end - begin} of {sim.names[1]}"
        if failed != {sim.names[1]}:
            who = ", ".join(sorted(failed)) or "nobody"
            hint = "local training leaves examples out (a last batch dropped?), or a bad client's numbers reach others"
            raise Broken(f"with {number} NaN that client fails, and no other", f"{who} failed", hint)
        others = [row for row, name in enumerate(sim.names) if name != sim.names[1]]
        if not predicted(sim)[others].isfinite().all():
            hint = "the server uses what a failed client sent, or counts on its answer"
            raise Broken(f"with {number} NaN all other clients have finite models", "some have not", hint)


def sizes(subject: Subject) -> None:
    """Clients with 1, B - 1, B, B + 1 and 3 B examples train side by side."""
    B = BATCHES.batch_size
    sim = subject.simulation(classified((1, B - 1, B, B + 1, 3 * B)), training=BATCHES)
    failures = [failure for report in run(sim) for failure in report.failures]
    if failures:
        raise Broken(f"clients of any size train in batches of {B}", str(failures[0]), "a division by n - 1, or by 0?")
    if not predicted(sim).isfinite().all():
        raise Broken(f"clients of any size train in batches of {B}", "NaN or infinite models", "a division by 0?")


def without_validation(subject: Subject) -> None:
    """Clients without validation data do not stop a run: losses fall back to training data."""
    none = ClientData.from_clients(
        [torch.zeros(0, *RAGGED.train.feature_shape)] * RAGGED.k, [torch.zeros(0, dtype=torch.int64)] * RAGGED.k
    )
    try:
        sim, _ = played(subject, replace(RAGGED, validation=none), participation=Participation("uniform", 0.5))
    except CoterieError as error:
        if "validation" in str(error):
            return  # refused in a sentence that names what is missing
        raise
    if not predicted(sim).isfinite().all():
        hint = "a mean over no examples is NaN: use site.loss('validation', ...), which falls back"
        raise Broken("a run without validation data has finite models", "NaN", hint)
