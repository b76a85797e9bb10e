"""Any subset of the clients may take part and answer, the empty one included."""

from __future__ import annotations

from dataclasses import replace

import torch

from coterie.engines import Participation
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.testing.subject import Broken, Subject, models_of, predicted, run
from coterie.testing.toys import RAGGED


def participation(subject: Subject) -> None:
    """All, half, one and nobody: every round ends with finite models; an empty round leaves each as it was."""
    for rule in (Participation("uniform", 0.5), Participation("uniform", clients=1), Participation("bernoulli", 0.2)):
        sim = subject.simulation(RAGGED, participation=rule, rounds=5)
        run(sim)
        if not predicted(sim).isfinite().all():
            hint = "a mean or a normalisation over nobody, or state of clients that were never seen"
            raise Broken(f"models stay finite with {rule}", "NaN or infinite models", hint)
    sim = subject.simulation(RAGGED, rounds=4, absent={2: RAGGED.names})
    run(sim, 1)
    held = {name: models.clone() for name, models in models_of(sim).items()}
    run(sim, 1)
    after = models_of(sim)
    if any(not torch.equal(models.flat(), after[name].flat()) for name, models in held.items()):
        hint = "the server changes its state before it has asked"
        raise Broken("a round in which nobody answers leaves every model as it was", "models have changed", hint)
    run(sim)
    if not predicted(sim).isfinite().all():
        raise Broken("training goes on after an empty round", "NaN or infinite models", "")


def absent(subject: Subject) -> None:
    """A client that never takes part changes nobody's model by being listed with other data."""
    names = RAGGED.names
    away = dict.fromkeys(range(1, 5), (names[0],))
    sims = []
    for seed in (0, 1):
        others = RAGGED if seed == 0 else _with_other_first()
        sim = subject.simulation(others, rounds=4, absent=away)
        run(sim)
        sims.append(predicted(sim)[1:])
    if sims[0].shape != sims[1].shape or not torch.equal(*sims):
        hint = "the server reads the data or sizes of clients that did not take part, or lets theta^0 of theirs count"
        raise Broken("a client that never answers has no influence", "others' models depend on its data", hint)


def _with_other_first() -> Federation:
    """The same federation but for the first client, which has fewer and other training data."""
    clients = [RAGGED.train.client(row) for row in range(RAGGED.k)]
    clients[0] = (-2.0 * clients[0][0][:3], clients[0][1][:3])
    inputs, targets = zip(*clients, strict=True)
    return replace(RAGGED, train=ClientData.from_clients(inputs, targets))
