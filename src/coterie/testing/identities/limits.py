"""Options under which a method is another one, and pulls that go all the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from coterie.contract import Limit
from coterie.engines import Participation
from coterie.models import Models
from coterie.testing.recording import Recording
from coterie.testing.subject import FULL_BATCH, MOMENTUM, Broken, Subject, predicted, require_equal, run
from coterie.testing.toys import BLIND, RAGGED, classified

HALF = Participation("uniform", 0.5)


def limits(subject: Subject) -> None:
    """With the options of each claimed limit it is the other method, at full and at half participation."""
    for limit in subject.claims.limits:
        for participation in (Participation(), HALF):
            _limit(subject, limit, participation)


def _limit(subject: Subject, limit: Limit, participation: Participation) -> None:
    ours = subject.simulation(RAGGED, limit.options, participation=participation)
    theirs = subject.other(RAGGED, limit.method, limit.of, participation=participation)
    run(ours)
    run(theirs)
    what = f"the server's {limit.state} is that of" if limit.state else "every client predicts as with"
    some = "" if participation.rule == "all" else ", half of the clients taking part"
    expected = f"with {_said(limit.options)} {what} {limit.method} with {_said(limit.of)}{some}"
    hint = "what remains of the method at this limit still acts, or it trains on other batches or from another start"
    if limit.state:
        one, other = (getattr(sim.server, limit.state).flat() for sim in (ours, theirs))
    else:
        one, other = predicted(ours), predicted(theirs)
    require_equal(one, other, ours.names, expected, hint)


def alone(subject: Subject) -> None:
    """A single client trains exactly as LOCAL does, and with the method's defaults it trains at all."""
    federation = classified((9,))
    training = FULL_BATCH if subject.claims.one_step else MOMENTUM
    ours = subject.simulation(federation, subject.claims.alone, training=training)
    local = subject.other(federation, "local", {}, training=training)
    run(ours)
    run(local)
    expected = f"a single client, with {_said(subject.claims.alone)}, trains as LOCAL does"
    hint = (
        "with nobody to learn from, something still moves the model, or it is mixed with what is not a model; where "
        "that is so by definition, give options in claims.alone under which it is not, or the reason in claims.exempt"
    )
    require_equal(predicted(ours), predicted(local), ours.names, expected, hint)


def single(subject: Subject) -> None:
    """A federation of one client runs to its end, whatever is divided by K - 1."""
    sim = subject.simulation(classified((9,)), keep_best="best_val")
    run(sim)
    if not predicted(sim).isfinite().all():
        raise Broken("a single client has a finite model", "NaN or infinite numbers", "is something divided by K - 1?")


def anchored(subject: Subject) -> None:
    """With strength times learning rate 1, no gradient and no momentum, one step from anywhere lands on the anchor."""
    claim = subject.claims.anchored
    if claim is None:
        return
    for lr in (0.5, 0.1):
        sim = subject.simulation(
            RAGGED, claim.options(lr), model=BLIND, engine=Recording, rounds=2, training=replace(FULL_BATCH, lr=lr)
        )
        assert isinstance(sim, Recording)
        scatter(sim)
        sim.advance()
        call = sim.calls[-1]
        anchor = call.received[claim.anchor].flat()
        landed = sim.bank.get("theta", torch.arange(sim.K), call=0).flat()
        expected = f"one step of rate {lr} with the strength {1 / lr} ends at the received {claim.anchor}"
        hint = "the pull is scaled (a factor 2 of ||.||^2?), unsquared, detached, or aims at another model"
        require_equal(landed, anchor, sim.names, expected, hint, 1e-12)


def scatter(sim: Any) -> None:
    """Give the server and all clients distinct random models of an architecture with one tensor."""
    draw = torch.Generator().manual_seed(0)
    layout = sim.stack.layout
    (name,) = layout.parameters

    def rows(count: int) -> Models:
        return Models(layout, {name: torch.randn(count, *layout.shapes[name], generator=draw, dtype=torch.float64)})

    for key, value in list(sim.server_state.items()):
        if isinstance(value, Models):
            setattr(sim.server, key, rows(len(value)))
    everyone = torch.arange(sim.K)
    sim.bank.set("theta", everyone, rows(sim.K), everyone, call=0)
    sim.bank.commit(torch.ones(sim.K, dtype=torch.bool))


def _said(options: Any) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}" if options else "its defaults"
