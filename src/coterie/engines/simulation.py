"""The simulator: client methods run on many clients at once, in chunks of rows, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract import Algorithm, Predictor
from coterie.engines.bank import SiteBank
from coterie.engines.base import Engine, Evaluations
from coterie.engines.company import Company
from coterie.engines.settings import Settings
from coterie.engines.sites import Call, Reply, Sites
from coterie.federation.federation import Federation
from coterie.models import ModelSpec


class Simulation(Engine):
    """One algorithm, one federation, one seed. ``resolved`` says how it runs on this machine."""

    side: type[Sites] = Sites

    def __init__(self, federation: Federation, algorithm: Algorithm, model: ModelSpec, settings: Settings) -> None:
        super().__init__(federation, algorithm, model, settings)
        self.sites = self.side(self.federation, algorithm, self.stack, settings)

    @property
    def bank(self) -> SiteBank:
        """The state of all clients."""
        return self.sites.bank

    @property
    def resolved(self) -> dict[str, Any]:
        """How this run is executed: what must be equal for bit-identical results."""
        return {
            "executor": self.stack.executor,
            "chunk": self.sites.chunk,
            "threads": self.sites.threads,
            "device": str(self.device),
            "dtype": self.settings.dtype,
            "precision": self.settings.precision,
        }

    def accompany(self, company: Company) -> None:
        """Let the clients compute in company; time is then counted by its clock."""
        self.sites.company, self.clock = company, company.clock

    @property
    def phase(self) -> str:
        """What the run is about: to ``prepare``, ``describe``, ``train`` or ``evaluate``."""
        return self._phase

    def _reach(self, call: Call) -> Reply:
        return self.sites.answer(call)

    def _commit(self, good: Tensor) -> None:
        self.sites.commit(good)

    def _strengths(self) -> dict[str, NDArray[np.float64]]:
        return self.sites.strengths()

    def _predict(self, offer: Mapping[str, Any]) -> Iterator[tuple[Sequence[int], Predictor]]:
        return ((rows.tolist(), predictor) for rows, predictor in self.sites.predictors(offer, self.round))

    def _measure(self, offer: Mapping[str, Any]) -> Evaluations:
        measured = self.sites.evaluate(offer, self.round)
        return {
            split: {metric: value.numpy() for metric, value in metrics.items()} for split, metrics in measured.items()
        }

    def site_state(self) -> dict[str, Any]:
        """The state of all clients."""
        return self.sites.state_dict()

    def load_site_state(self, state: Mapping[str, Any]) -> None:
        """Give all clients their state back."""
        self.sites.load_state_dict(state)
