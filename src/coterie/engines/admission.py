"""Newcomers to a trained federation: what they receive, what they predict, and how they learn from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract import Algorithm, Predictor
from coterie.contract.payload import weigh
from coterie.engines import checkpoint
from coterie.engines.base import Failure, NobodyAnswered, owners
from coterie.engines.examples import example_losses
from coterie.engines.ledger import Ledger
from coterie.engines.predict import measure
from coterie.engines.settings import Settings
from coterie.engines.simulation import Simulation
from coterie.engines.sites import Sizes
from coterie.engines.snapshot import Snapshot
from coterie.engines.trained import Trained
from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec
from coterie.training import Schedule


@dataclass(frozen=True)
class Admitted:
    """How newcomers fared.

    Attributes
    ----------
    values : mapping of str to ndarray (epochs + 1, K)
        Test metrics on arrival and after each epoch; NaN for newcomers that failed.
    names, predictor : tuple of str, Predictor
        What those who did not fail predict with at the end, ``(a,)`` rows, or ``(a, c)`` candidates of a mixture.
    traffic : mapping of str to ndarray (K,)
        Bytes by direction and kind, such as ``down:model``.
    failures : tuple of Failure
        Newcomers that were left out, and why.
    """

    values: Mapping[str, NDArray[np.float64]]
    names: tuple[str, ...]
    predictor: Predictor
    traffic: Mapping[str, NDArray[np.int64]]
    failures: tuple[Failure, ...]

    @property
    def models(self) -> Models:
        """The models of the predictor."""
        return self.predictor.models


class Admission(Simulation):
    """The K newcomers of ``federation`` come to a server that others have trained.

    They are asked as clients are, but they are no members: nothing of them stays at the server. The learning rate is
    that of the settings, without the schedule of the rounds, and their optimisers have no rounds to go on from.
    """

    def __init__(
        self, trained: Trained, federation: Federation, algorithm: Algorithm, model: ModelSpec, settings: Settings
    ) -> None:
        check_fit(trained, federation)
        check_method(trained, algorithm, settings.seed)
        training = replace(settings.training, schedule=Schedule(), optimizer_state="fresh")
        self._trained = trained
        super().__init__(federation, algorithm, model, replace(settings, training=training, absent={}))
        self._members = len(trained.names)
        self.ledger = Ledger((*trained.names, *self.names))
        self.round = trained.round
        self.sites.context = replace(self.sites.context, roster=self._members)

    def _serve(self) -> None:
        """The server as the members' last round has left it."""
        trained = self._trained
        self._server = self._server_for(trained.names, trained.n)
        self._server.unlabelled_newcomers, self._server.round = trained.unlabelled_newcomers, trained.round
        self.algorithm.setup(self._server)
        if not self._store.values.keys() <= trained.server.keys():
            raise CoterieError(f"the saved server of {self.algorithm.name} is not whole: run the experiment again")
        shapes = {name: list(shape) for name, shape in self.stack.layout.shapes.items()}
        if shapes != trained.model:
            raise CoterieError("the model is not the one that was trained: give the configuration of that run")
        checkpoint.restore_server(self._store.values, trained.server, self.stack.layout)

    def admit(self, *, labelled: bool, epochs: int) -> Admitted | None:
        """Let all newcomers in; those with labels learn for ``epochs`` epochs.

        Without ``labelled`` no method sees a target. None where the method has nothing for such newcomers.

        Raises
        ------
        CoterieError
            The method cannot take them in as it was trained; the message says what is missing.
        """
        self.sites.federation = self.federation if labelled else _unlabelled(self.federation)
        self._phase, epochs = "newcomer", epochs if labelled else 0
        self.ledger, self._failures = Ledger((*self._server.names, *self.names)), []
        self._failed = torch.zeros(self.K, dtype=torch.bool)
        self.bank.discard()
        self._calls.clear()
        everyone = self._everyone()
        try:
            with self._no_exit():
                received = self.algorithm.adapt(self._server, everyone, labelled)
        except NobodyAnswered:
            received = {}
        if received is None:
            return None
        here = everyone[~self._failed]
        if not len(here):
            raise CoterieError(f"every newcomer failed: {self._failures[0]}; lower newcomers.training.lr")
        values, final = self._curves(here, received, epochs)
        if bool(self._failed.all()):
            raise CoterieError(f"every newcomer failed: {self._failures[0]}; lower newcomers.training.lr")
        whole = ~self._failed[here]
        names = self._named(here[whole])
        weights = None if final.weights is None else final.weights[whole.to(final.weights.device)]
        predictor = Predictor(final.models[whole], weights, final.combine)
        return Admitted(values, names, predictor, self._traffic(), tuple(self._failures))

    def validation_losses(self, admitted: Admitted) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
        """How many validation examples those have who did not fail, ``(a,)``, and what is lost on each of these."""
        data = self.federation.validation.select([self.names.index(name) for name in admitted.names])
        if not data.total:
            return data.n.cpu().numpy(), {}
        task, classes = self.federation.task, self.federation.classes
        losses = example_losses(self.stack, admitted.predictor, data, task, classes)
        return data.n.cpu().numpy(), {name: values.cpu().numpy() for name, values in losses.items()}

    def _curves(
        self, here: Tensor, received: Mapping[str, Any], epochs: int
    ) -> tuple[dict[str, NDArray[np.float64]], Predictor]:
        """Test metrics ``(epochs + 1, K)``, and what the newcomers ``here: (a,)`` predict with at the end."""

        sites = self.sites

        def live(rows: Tensor) -> tuple[Tensor, dict[str, Any], list[dict[str, Tensor]], Predictor]:
            arrived = sites.arrived(received, rows, len(here))
            sites.start(here[rows], here, self.round)
            site, curve = sites.site(here[rows], here, self.round), list[dict[str, Tensor]]()
            test = self.federation.test.select(here[rows].tolist())
            predictor: Predictor | None = None
            with self._no_exit():
                for following in self.algorithm.newcomer(site, epochs, **sites.statistics.arrive(site, arrived)):
                    if following is predictor:  # nothing was learnt meanwhile
                        curve.append(curve[-1])
                        continue
                    predictor = self._checked(following, len(rows))
                    measured = measure(self.stack, predictor, test, self.federation.task, self.further)
                    curve.append(self._where_finite(predictor, {name: value.cpu() for name, value in measured.items()}))
            if predictor is None or len(curve) != epochs + 1:
                raise CoterieError(
                    f"{self.algorithm.name}.newcomer gave {len(curve)} predictors for {epochs} epochs; one on arrival "
                    "and one after each epoch are expected"
                )
            return rows, arrived, curve, predictor

        values: dict[str, NDArray[np.float64]] = {}
        final = Snapshot(len(here))
        parts: list[tuple[Sequence[int], Predictor]] = []
        for rows, arrived, curve, predictor in sites.workers.map(live, sites.chunks(torch.arange(len(here)))):
            for name, value in arrived.items():
                self._book("down", here[rows], weigh(value, len(value)), owners(received[name], rows))
            for epoch, measured in enumerate(curve):
                for name, value in measured.items():
                    table = values.setdefault(name, np.full((epochs + 1, self.K), np.nan))
                    table[epoch, here[rows].numpy()] = value.numpy()
            always = [value for name, value in curve[-1].items() if name not in self.further]
            lost = torch.stack([value.isnan() for value in always]).any(dim=0)
            for client in here[rows][lost]:
                self._fail(int(client), "its model or what it predicts became NaN or infinite")
            parts.append((rows.tolist(), predictor))
        widest = max(predictor.candidates for _, predictor in parts)
        final.take((rows, predictor.widened(widest)) for rows, predictor in parts)
        return values, final.load()

    def _where_finite(self, predictor: Predictor, measured: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Metrics by name, ``(k,)``, NaN for all where a model, its weights or one that everybody has is not finite."""
        good = predictor.models.finite().cpu()
        if predictor.weights is not None:
            good &= predictor.weights.isfinite().all(dim=1).cpu()
        for name, value in measured.items():
            if name not in self.further:
                good &= value.isfinite()
        return {name: torch.where(good, value, torch.nan) for name, value in measured.items()}

    def _checked(self, predictor: Any, count: int) -> Predictor:
        """What a method's ``newcomer`` has yielded for ``count`` newcomers."""
        if not isinstance(predictor, Predictor) or len(predictor.models) != count:
            found = f"{len(predictor.models)} rows" if isinstance(predictor, Predictor) else type(predictor).__name__
            raise TypeError(f"{type(self.algorithm).__name__}.newcomer yields a Predictor of {count} rows, not {found}")
        return predictor

    @contextmanager
    def _no_exit(self) -> Iterator[None]:
        try:
            yield
        except SystemExit as error:
            raise CoterieError(f"{self.algorithm.name}: its code for newcomers called sys.exit") from error

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The newcomers that failed when they were last admitted."""
        return tuple(self._failures)

    # --- how newcomers differ from clients -----------------------------------------------------------------------
    def _book(self, direction: str, clients: Tensor, sizes: Sizes, peers: Tensor | None) -> None:
        """Newcomers stand behind the members in the ledger."""
        super()._book(direction, clients + self._members, sizes, peers)

    def _traffic(self) -> dict[str, NDArray[np.int64]]:
        """What the newcomers received and sent, ``(K,)`` bytes."""
        booked = sorted(self.ledger.bytes.items())
        return {f"{direction}:{kind}": column[self._members :] for (_, direction, kind), column in booked}


def _unlabelled(federation: Federation) -> Federation:
    """Clients that show the methods their inputs only."""
    train, validation = without_labels(federation.train), without_labels(federation.validation)
    return replace(federation, train=train, validation=validation)


def without_labels(data: ClientData) -> ClientData:
    """The same inputs with targets that nothing can be learnt from, and that no loss accepts silently."""
    nothing = torch.nan if data.targets.is_floating_point() else -1
    return replace(data, targets=torch.full_like(data.targets, nothing))


def check_fit(trained: Trained, federation: Federation) -> None:
    """Refuse newcomers whose data are of another kind.

    Raises
    ------
    CoterieError
        Names what differs.
    """
    for what, members, newcomers in (
        ("task", trained.task, federation.task),
        ("number of outputs", trained.classes, federation.classes),
        ("shape of the inputs", trained.feature_shape, federation.feature_shape),
    ):
        if members != newcomers:
            raise CoterieError(
                f"the newcomers' {what} is {newcomers}, but the federation was trained with {members}: their data must "
                "be of the same kind."
            )


def check_method(trained: Trained, algorithm: Algorithm, seed: int) -> None:
    """Refuse the server of another method, of other options or of another seed.

    Raises
    ------
    CoterieError
        Names what differs.
    """
    own = {"algorithm": algorithm.name, "options": algorithm.options(), "seed": seed}
    for what, value in own.items():
        if getattr(trained, what) != value:
            raise CoterieError(
                f"the saved server is of another run: its {what} is {getattr(trained, what)!r}, not {value!r}: put the "
                "right file back, or run the experiment again."
            )
