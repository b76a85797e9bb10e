"""L2GD: local models with a penalty to their mean, by local steps and averaging steps in random order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.contract import Algorithm, Claims, Predictor, Server, Site, broadcast, option, register
from coterie.errors import CoterieError
from coterie.models import Models
from coterie.training.keys import generator


@register
@dataclass(frozen=True)
class L2GD(Algorithm):
    """L2GD (Hanzely & Richtarik, 2020): min (1/K) sum_k F_k(x_k) + (lambda/2K) sum_k ||x_k - xbar||^2.

    Each iteration tosses one coin for all. With probability 1 - p: x_k <- x_k - alpha / (K (1 - p)) grad F_k(x_k); with
    probability p: x_k <- (1 - s) x_k + s xbar, s = alpha lambda / (K p). The learning rate eta of training is that of a
    local step, alpha = eta K (1 - p), so that s = eta lambda (1 - p) / p. Models travel only when an averaging step
    follows a local one, since averaging steps leave the mean as it is.
    """

    name: ClassVar[str] = "l2gd"
    title: ClassVar[str] = "L2GD"
    paper: ClassVar[str] = "Hanzely & Richtárik, 2020"
    cites: ClassVar[str] = "hanzely2020federated"
    evaluated: ClassVar[str] = "own model after the round's iterations"
    deviations: ClassVar[tuple[str, ...]] = (
        "A round is a fixed number of iterations, so that it can be compared with a round of other methods.",
        "The step of the whole objective is set by the local learning rate, α = η K (1 - p), and so grows with K.",
        "Local steps use mini-batches; consecutive ones share one pass over shuffled data and one optimiser.",
        "With partial participation the coins of a round are for its clients, and the mean is that of its clients.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"p": 0.4},
        learns={"iterations": 40},
        exempt={
            "alone": "a round is a number of iterations and not of epochs",
            "traffic": "models travel when a coin says so: p (1 - p) times an iteration on average",
        },
    )

    lambda_: float = option(
        0.5, "strength λ of the penalty; 0 is LOCAL that skips steps at random", paper="tuned", least=0
    )
    p: float = option(0.1, "probability p of an averaging step", paper="λ / (L + λ) in theory", above=0, below=1)
    iterations: int = option(20, "coins, and so local or averaging steps, of a round", paper="no rounds", least=1)

    def share(self, lr: float) -> float:
        """s, the share of the way to the mean that an averaging step goes; ``CoterieError`` where it overshoots."""
        s = lr * self.lambda_ * (1.0 - self.p) / self.p
        if s > 1.0 + 1e-12:
            raise CoterieError(
                f"an averaging step would go {s:.4g} times the way to the mean, and may go 1; lower lambda or "
                "training.lr, or raise p"
            )
        return s

    # --- at the server -------------------------------------------------------------------------------------------
    def setup(self, server: Server) -> None:
        """xbar, and who has moved since it was formed, or does not hold it."""
        server.w = server.initial_model()
        server.moved = torch.zeros(server.K, dtype=torch.bool)
        server.transfers = 0

    def round(self, server: Server, cohort: Tensor) -> None:
        """The round's coins; equal ones in a row become one ask."""
        coins = generator(server.seed, server.round, "coins of l2gd").random(self.iterations) < self.p
        first = 0
        for averaging, group in groupby(coins.tolist()):
            steps = len(list(group))
            counts = {"steps": torch.full((len(cohort),), steps), "first": torch.full((len(cohort),), first)}
            if averaging:
                self.average(server, cohort, counts["steps"])
            else:
                server.moved[cohort] = True  # or failed, and then without the mean of this round
                server.ask(self.local_steps, cohort, **counts)
            first += steps

    def average(self, server: Server, cohort: Tensor, steps: Tensor) -> None:
        """Form xbar anew where somebody has moved, then go towards it."""
        if bool(server.moved[cohort].any()):
            up = server.ask(self.upload, cohort, average=torch.ones(len(cohort)))
            server.moved[:] = True
            went = server.ask(self.averaging_steps, cohort, steps=steps, mean=broadcast(up.x))
            server.w, server.transfers = up.x, server.transfers + 1
        else:
            server.moved[cohort] = True
            went = server.ask(self.averaging_steps, cohort, steps=steps)
        server.moved[went.clients] = False

    # --- at the clients ------------------------------------------------------------------------------------------
    def start(self, site: Site) -> None:
        """The own model x_k is theta^0, and so is the mean."""
        site.mean = site.theta

    def local_steps(self, site: Site, steps: Tensor, first: Tensor) -> Mapping[str, Any]:
        """x_k <- x_k - eta grad F_k(x_k), ``steps`` times, on batches of their own in each part of a round."""
        self.share(site.lr)  # said before much is computed
        batches = f"train {int(first[0])}" if int(first[0]) else "train"
        site.theta = site.fit(site.theta, steps=int(steps[0]), batches=batches).models
        return {}

    def upload(self, site: Site) -> Mapping[str, Any]:
        """x_k."""
        return {"x": site.theta}

    def averaging_steps(self, site: Site, steps: Tensor, mean: Models | None = None) -> Mapping[str, Any]:
        """x_k <- (1 - s) x_k + s xbar, ``steps`` times at once."""
        if mean is not None:
            site.mean = mean
        keep = (1.0 - self.share(site.lr)) ** int(steps[0])
        site.theta = site.theta * keep + site.mean * (1.0 - keep)
        return {}

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """xbar."""
        return {"theta": broadcast(server.w)}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """From xbar, pulled towards it with the penalty's strength."""
        mean = received["theta"]
        yield Predictor(mean)
        for x in site.by_epoch(mean, epochs, anchor=mean, strength=self.lambda_):
            yield Predictor(x)

    def notes(self, server: Server) -> Mapping[str, float]:
        """How often the mean has been formed so far; p (1 - p) times an iteration on average."""
        return {"transfers": float(server.transfers)}
