"""The simulator: client methods run on many clients at once, in chunks of rows, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract import Algorithm, Answers, LocalContext, Pick, Predictor, Server, Site, ToPeers
from coterie.contract.payload import for_rows, weigh
from coterie.contract.state import as_index
from coterie.engines.answers import Averaged, Collected
from coterie.engines.autotune import fastest
from coterie.engines.bank import SiteBank
from coterie.engines.base import Engine, Evaluations, NobodyAnswered
from coterie.engines.checkpoint import restore, state_of
from coterie.engines.predict import measure
from coterie.engines.settings import Settings
from coterie.engines.statistics import Statistics
from coterie.engines.workers import MACHINE_THREADS, Workers
from coterie.errors import CoterieError
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec, Stack, build_model
from coterie.models.rows import finite_rows
from coterie.models.stack import Executor
from coterie.training import objective_of
from coterie.training.keys import server_key

# bytes of one chunk's models: the working set of a training step then stays in a CPU's last-level cache
CHUNK_BYTES = 6_000_000


class _SiteStore:
    """The state of the clients of one chunk, as their site sees it."""

    def __init__(self, bank: SiteBank, clients: Tensor, asked: Tensor) -> None:
        self.bank, self.clients, self.asked, self.call = bank, clients, asked, bank.new_call()

    def get(self, name: str) -> Any:
        return self.bank.get(name, self.clients, self.call)

    def set(self, name: str, value: Any) -> None:
        self.bank.set(name, self.clients, value, self.asked, self.call)


class Simulation(Engine):
    """One algorithm, one federation, one seed. ``resolved`` says how it runs on this machine."""

    def __init__(self, federation: Federation, algorithm: Algorithm, model: ModelSpec, settings: Settings) -> None:
        super().__init__(algorithm, settings, federation.names, federation.task)
        self.device = _device(settings.device)
        self.federation = federation.to(self.device)
        self.stack = self._stack(model)
        self.initial_seed = server_key(settings.seed, 0, "initial weights") % 2**63
        theta = self.stack.initial(self.initial_seed)
        # models that all fit a core's cache train faster in one stack on one core than divided among several
        small = self.K * sum(theta.bytes_per_row()) <= CHUNK_BYTES
        cores = min(settings.workers or MACHINE_THREADS, MACHINE_THREADS)
        self.threads = settings.threads or (1 if small else cores)
        self.chunk = settings.chunk or self._auto_chunk(theta)
        chunks = -(-self.K // self.chunk)
        self.workers = Workers(min(self.threads, chunks) if self.device.type == "cpu" else 1, self.threads)
        self.bank = SiteBank(self.K, theta)
        self.statistics = Statistics(self.bank, theta)
        self.context = LocalContext(
            self.stack, objective_of(federation.task), settings.training, settings.seed, settings.rounds,
            federation.task, federation.classes, self.K,
        )  # fmt: skip
        self._serve()

    def _stack(self, model: ModelSpec) -> Stack:
        federation, settings = self.federation, self.settings

        def stack_with(executor: Executor) -> Stack:
            return Stack(
                lambda: build_model(
                    model.name, federation.feature_shape, federation.classes, federation.task, **model.options
                ),
                federation.feature_shape,
                executor=executor,
                policy=settings.buffers,
                dtype=getattr(torch, settings.dtype),
                device=self.device,
            )

        if settings.executor == "fastest":
            return fastest(stack_with, federation.train, settings.training, objective_of(federation.task))
        return stack_with(settings.executor)

    def _serve(self) -> None:
        """The server as it is before the first round."""
        self.algorithm.check_training(self.settings.training)
        self._server = self._server_for(self.names, self.federation.train.n.cpu())
        self.algorithm.setup(self._server)

    def _server_for(self, names: tuple[str, ...], n: Tensor) -> Server:
        """A server without state for clients with ``n: (K,)`` training examples."""
        return Server(
            names=names, n=n, seed=self.settings.seed, task=self.federation.task, classes=self.federation.classes,
            store=self._store, ask=self._ask, unlabelled_newcomers=self.settings.unlabelled_newcomers,
            initial=lambda count, distinct: self.stack.initial(self.initial_seed, count, distinct=distinct),
        )  # fmt: skip

    @property
    def resolved(self) -> dict[str, Any]:
        """How this run is executed: what must be equal for bit-identical results."""
        return {
            "executor": self.stack.executor,
            "chunk": self.chunk,
            "threads": self.threads,
            "device": str(self.device),
            "dtype": self.settings.dtype,
        }

    # --- ask -----------------------------------------------------------------------------------------------------
    def _ask(
        self, method: Callable[..., Any], clients: Tensor, *, average: Tensor | None, payload: Mapping[str, Any]
    ) -> Answers:
        asked = as_index(clients)
        away = self._absent() | self._failed
        present = (~away[asked]).nonzero().flatten()
        self._failed[asked[away[asked]]] = True
        gathered = Collected(self.bank, len(asked)) if average is None else Averaged(average)

        def run(rows: Tensor) -> tuple[Tensor, Site, dict[str, Any], dict[str, Any], dict[str, Tensor]]:
            arrived = self._arrived(payload, rows, len(asked))
            self._start(asked[rows], asked)
            site = self._site(asked[rows], asked)
            answer = self._call(method, site, self.statistics.arrive(site, arrived))
            peers = {name: value.index.cpu() for name, value in answer.items() if isinstance(value, ToPeers)}
            returned = {name: value.value if isinstance(value, ToPeers) else value for name, value in answer.items()}
            leaving = self.statistics.leave(site, returned, peers)
            return rows, site, arrived, {name: _at_the_server(value) for name, value in leaving.items()}, peers

        for rows, site, arrived, returned, peers in self.workers.map(run, self._chunks(present)):
            for name, value in arrived.items():
                sent = payload[name]
                self._book("down", site.clients, value, sent.index[rows] if between_peers(sent) else None)
            good = self._check(returned, site)
            for name, value in returned.items():
                index = peers.get(name)
                self._book("up", site.clients[good], value, None if index is None else index[good])
            gathered.add(returned, rows, site.clients, good)
        if gathered.count == 0:
            raise NobodyAnswered
        answered = gathered.clients()
        self._answered[answered] = True
        return Answers(answered, gathered.values(), asked)

    def _arrived(self, payload: Mapping[str, Any], rows: Tensor, asked: int) -> dict[str, Models | Tensor]:
        """What the clients at positions ``rows: (r,)`` of the ``asked`` ones receive, where their data are."""
        arrived = {name: for_rows(value, rows, asked) for name, value in payload.items()}
        return {name: v.to(self.device) if isinstance(v, Tensor) else v for name, v in arrived.items()}

    def _call(self, method: Callable[..., Any], site: Site, payload: Mapping[str, Any]) -> dict[str, Any]:
        try:
            returned = dict(method(site, **payload) or {})
        except CoterieError as error:
            raise CoterieError(f"{self.algorithm.name}, round {self.round}: {error}") from error
        except SystemExit as error:
            raise CoterieError(f"{self.algorithm.name}, round {self.round}: its code called sys.exit") from error
        for name, answer in returned.items():
            value = answer.value if isinstance(answer, ToPeers) else answer
            where = f"{type(self.algorithm).__name__}.{getattr(method, '__name__', 'method')} returned {name}"
            if not isinstance(value, Models | Tensor):
                raise TypeError(f"{where} as {type(value).__name__}; client methods return Models and tensors")
            if len(value.lead if isinstance(value, Models) else value.shape) == 0 or len(value) != site.k:
                raise ValueError(f"{where} without one row for each of its {site.k} clients")
        return returned

    def _check(self, returned: Mapping[str, Models | Tensor], site: Site) -> Tensor:
        """Which of a site's clients gave finite answers and kept finite state, ``(k,)`` bool; the others fail."""
        good = torch.ones(site.k, dtype=torch.bool)
        for value in returned.values():
            if isinstance(value, Models):
                good &= value.finite().cpu()
            elif value.is_floating_point():
                good &= finite_rows(value).cpu()
        good &= self.bank.finite(site.clients)
        for row in (~good).nonzero().flatten():
            reason = "its loss or its model became NaN or infinite; it is left out of this round"
            self._fail(int(site.clients[row]), reason)
        return good

    def _book(self, direction: str, clients: Tensor, value: Models | Tensor, peers: Tensor | None) -> None:
        """Book for each of ``clients: (k,)`` its share of ``value``; ``peers: (k, m)`` are the other ends, if peers."""
        sizes = weigh(value, len(value))
        if peers is None:
            self.ledger.book(self._phase, direction, clients, sizes)
        else:
            each = {kind: size // peers.shape[1] for kind, size in sizes.items()}
            self.ledger.book_peers(self._phase, peers, clients, each)

    # --- sites ---------------------------------------------------------------------------------------------------
    def _site(self, clients: Tensor, asked: Tensor) -> Site:
        numbers = clients.tolist()
        return Site(
            clients=clients,
            names=[self.names[number] for number in numbers],
            round=self.round,
            train=self.federation.train.select(numbers),
            validation=self.federation.validation.select(numbers),
            context=self.context,
            store=_SiteStore(self.bank, clients, asked),
        )

    def _chunks(self, rows: Tensor) -> list[Tensor]:
        """Runs of at most ``chunk`` rows; none of no rows."""
        return [rows[first : first + self.chunk] for first in range(0, len(rows), self.chunk)]

    def _start(self, clients: Tensor, asked: Tensor) -> None:
        new = clients[~(self.bank.started | self.bank.starting)[clients]]
        if len(new):
            self.algorithm.start(self._site(new, asked))
            self.bank.starting[new] = True

    def _end_round(self) -> None:
        self.bank.commit(~self._failed)

    # --- checkpoints ---------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything that the next round depends on, as plain data."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; the run must have been built from the same configuration."""
        restore(self, state)

    # --- evaluation ----------------------------------------------------------------------------------------------
    def _predictors(self) -> Iterator[tuple[Sequence[int], Predictor]]:
        everyone = self._everyone()
        offer = self.algorithm.offer(self._server, everyone)
        for rows in self._chunks(everyone):
            arrived = self._arrived(offer, rows, self.K)
            new = rows[~self.bank.started[rows]]
            if len(new):  # never contacted so far: what it would start with, without making it its state
                self.algorithm.start(self._site(new, everyone))
            site = self._site(rows, everyone)
            predictor = self.algorithm.personal(site, **self.statistics.arrive(site, arrived))
            self.bank.discard()
            yield rows.tolist(), predictor

    def _evaluate(self) -> Evaluations:
        offer = self.algorithm.offer(self._server, self._everyone())
        for value in offer.values():
            one = for_rows(value, self._everyone()[:1], self.K)
            self._book("down", self._everyone(), one, value.index if between_peers(value) else None)
        parts: dict[str, dict[str, list[Tensor]]] = {}
        for clients, predictor in self._predictors():
            for split in ("validation", "test"):
                if self._data(split).total == 0:
                    continue
                values = measure(self.stack, predictor, self._data(split).select(clients), self.federation.task)
                for metric, value in values.items():
                    parts.setdefault(split, {}).setdefault(metric, []).append(value.cpu())
        return {
            split: {metric: torch.cat(pieces).numpy() for metric, pieces in metrics.items()}
            for split, metrics in parts.items()
        }

    def _data(self, split: str) -> Any:
        return getattr(self.federation, split)

    def _sizes(self) -> dict[str, NDArray[np.int64]]:
        return {split: self._data(split).n.cpu().numpy() for split in ("validation", "test")}

    def _auto_chunk(self, theta: Models) -> int:
        if self.device.type != "cpu":
            free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 2**33
            return max(1, min(self.K, int(free / 16 / max(1, sum(theta.bytes_per_row())))))
        for_cache = CHUNK_BYTES // max(1, sum(theta.bytes_per_row()))
        for_workers = -(-self.K // self.threads)
        return max(1, min(for_cache, for_workers))


def _at_the_server(value: Models | Tensor) -> Models | Tensor:
    """Models stay where they are trained; summaries and numbers are worked with on the CPU."""
    return value.cpu() if isinstance(value, Tensor) else value


def between_peers(sent: Any) -> bool:
    """Whether a payload value goes from clients to clients."""
    return isinstance(sent, Pick) and sent.peers


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CoterieError(f"device '{name}' is not available here: {str(error).splitlines()[0]}; use cpu") from error
    return device
