"""What is shown and measured: relations, and evaluation that leaves no trace."""

from __future__ import annotations

import torch

from coterie.testing.subject import Broken, Subject, played, predicted
from coterie.testing.toys import RAGGED


def relations(subject: Subject) -> None:
    """Matrices of who learns from whom are ``(K, K)``, not negative, and every row sums to 1 (or is unknown, NaN)."""
    sim, _ = played(subject, RAGGED, rounds=4)
    for name, matrix in sim.algorithm.relations(sim.server).items():
        if tuple(matrix.shape) != (sim.K, sim.K):
            raise Broken(f"the relation {name} is (K, K)", f"it is {tuple(matrix.shape)}")
        if name in subject.claims.unnormalised:
            continue
        known = ~matrix.isnan().any(1)
        for row in known.nonzero().flatten().tolist():
            total, least = float(matrix[row].sum()), float(matrix[row].min())
            if abs(total - 1.0) > 1e-6 or least < -1e-12:
                raise Broken(
                    f"each row of the relation {name} is a share of 1",
                    f"that of {sim.names[row]} sums to {total:.4g} with {least:.3g} as its smallest",
                    "a missing normalisation; or positions within a cluster or cohort are stored as client numbers, so "
                    "that a client stands in two groups or in none",
                )


def evaluated(subject: Subject) -> None:
    """Evaluating in each round, or never, leaves the same models: what evaluation tunes is not fed back."""
    often, _ = played(subject, RAGGED, evaluate_every=1)
    never, _ = played(subject, RAGGED, evaluate_every=1000)
    if not torch.equal(predicted(often), predicted(never)):
        hint = "personal(site) or offer(server) changes state"
        raise Broken("evaluation leaves no trace", "runs with and without it differ", hint)
    if not subject.cls.evaluated:
        raise Broken("the class says which model is evaluated", "`evaluated` is empty", "set the class attribute")
