"""The seed decides everything, and an interruption nothing."""

from __future__ import annotations

import io
from typing import Any

import torch

from coterie.testing.identities.limits import HALF
from coterie.testing.subject import Broken, Subject, played, predicted, run
from coterie.testing.toys import RAGGED


def seeded(subject: Subject) -> None:
    """The same seed twice gives the same bits, another seed others; torch's global generator is left alone."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (predicted(played(subject, RAGGED, seed=seed, participation=HALF)[0]) for seed in (0, 0, 1))
    after = torch.rand(3)
    if not torch.equal(first, again):
        hint = (
            "randomness must come from the seed: site.key(purpose) at a client, training.keys.generator at the server"
        )
        raise Broken("the same seed gives the same bits", "two runs differ", hint)
    if first.shape == other.shape and torch.allclose(first, other):
        raise Broken("another seed gives other models", "they are equal", "is the seed used at all?")
    if not torch.equal(after, expected):
        hint = "code draws from torch's global generator"
        raise Broken("torch's global generator is left alone", "a run has moved it on", hint)


def resumed(subject: Subject) -> None:
    """A run that is saved after two rounds and goes on elsewhere ends with the same bits."""
    settings: dict[str, Any] = {"rounds": 4, "participation": HALF, "absent": {2: ("client-1",)}}
    whole, _ = played(subject, RAGGED, **settings)
    begun = subject.simulation(RAGGED, **settings)
    run(begun, 2)
    file = io.BytesIO()
    torch.save(begun.state_dict(), file)
    file.seek(0)
    later = subject.simulation(RAGGED, **settings)
    later.load_state_dict(torch.load(file, weights_only=True))
    run(later)
    if not torch.equal(predicted(later), predicted(whole)):
        hint = "something is kept outside server.x and site.x (on the algorithm, in a module), or set by setup only"
        raise Broken("a saved and resumed run ends with the same bits", "the models differ", hint)
