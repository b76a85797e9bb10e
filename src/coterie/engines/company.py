"""Whom the clients of a run train with: nobody, or those of other runs beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Protocol

from torch import Tensor

from coterie.contract import Predictor, Site
from coterie.engines.predict import measure
from coterie.federation.data import ClientData
from coterie.models import Stack


class Company(Protocol):
    """Runs client code, and decides when a run is saved."""

    def run(self, method: Callable[..., Any], site: Site, received: Mapping[str, Any]) -> Any:
        """What ``method(site, **received)`` returns."""

    def measure(
        self,
        stack: Stack,
        predictor: Predictor,
        data: ClientData,
        rows: Tensor,
        split: str,
        task: str,
        further: tuple[str, ...] = (),
    ) -> dict[str, Tensor]:
        """How well the clients in ``rows: (k,)`` predict on their ``data`` of a split: ``(k,)`` by metric."""

    def agree(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """Whether to stop, and whether to save, after a round; each run says what it would do by itself."""

    def clock(self) -> float:
        """Seconds that this run has taken so far, by a clock that began at any time."""


class Alone:
    """A run by itself, a `Company` of one."""

    def run(self, method: Callable[..., Any], site: Site, received: Mapping[str, Any]) -> Any:
        """See `Company`."""
        return method(site, **received)

    def measure(
        self,
        stack: Stack,
        predictor: Predictor,
        data: ClientData,
        rows: Tensor,
        split: str,
        task: str,
        further: tuple[str, ...] = (),
    ) -> dict[str, Tensor]:
        """See `Company`."""
        return measure(stack, predictor, data, task, further)

    def agree(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """See `Company`."""
        return stop, save

    def clock(self) -> float:
        """See `Company`."""
        return perf_counter()
