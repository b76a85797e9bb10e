"""Clients are told apart by their data and by nothing else."""

from __future__ import annotations

from coterie.testing.subject import Subject, played, predicted, require_equal
from coterie.testing.toys import RAGGED, alike
from coterie.training import TrainingSettings

WHOLE = TrainingSettings(epochs=2, batch_size=1000, lr=0.1, momentum=0.5)
ORDERS = ([7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 7, 1, 6, 2, 5, 4])


def symmetric(subject: Subject) -> None:
    """Identical clients, on full batches, have identical models."""
    sim, _ = played(subject, alike(5), subject.claims.symmetric, rounds=4, training=WHOLE)
    models = predicted(sim)
    hint = "a client's number decides something: a tie, a start, or an update made in place while others still read"
    require_equal(models, models[:1].expand_as(models), sim.names, "clients with the same data have equal models", hint)


def relabelled(subject: Subject) -> None:
    """Listing the clients in another order permutes the results and changes nothing else, though some are absent."""
    settings = {"rounds": 4, "absent": {1: ("client-2",), 2: ("client-5", "client-0")}}
    here, _ = played(subject, RAGGED, **settings)
    for order in ORDERS:
        there, _ = played(subject, RAGGED.select(order), **settings)
        expected = f"listing the clients as {order} permutes their models"
        hint = (
            "positions in a cohort, a cluster or a list of answers are taken for client numbers, a matrix is indexed "
            "the wrong way round, or something random or tied goes by number instead of by name"
        )
        require_equal(predicted(there), predicted(here)[order], there.names, expected, hint)
