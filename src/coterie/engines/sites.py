"""The client side of an engine: some clients of a federation with their data, their state and their computing.

It knows nothing of the server but what a call brings. One of it holds all clients of a simulation, a share of them in
another process, or a single one at a real site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract import Algorithm, LocalContext, Predictor, Site, ToPeers
from coterie.contract.payload import Value, for_rows, weigh
from coterie.engines.answers import Averaged, Collected
from coterie.engines.autotune import fastest
from coterie.engines.bank import SiteBank
from coterie.engines.checkpoint import bank_state, restore_bank
from coterie.engines.company import Alone, Company
from coterie.engines.room import Room
from coterie.engines.settings import Settings
from coterie.engines.statistics import Statistics
from coterie.engines.workers import MACHINE_THREADS, Workers
from coterie.errors import CoterieError
from coterie.evaluation import further_metrics
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec, Stack, build_model
from coterie.models.rows import finite_rows, stack_rows
from coterie.models.stack import Executor
from coterie.privacy import Refused, filter_answer
from coterie.training import objective_of
from coterie.training.keys import server_key

# bytes of one chunk's models: the working set of a training step then stays in a CPU's last-level cache
CHUNK_BYTES = 6_000_000
NOT_FINITE = "its loss or its model became NaN or infinite; it is left out of this round"

Sizes = Mapping[str, int]  # bytes by kind


@dataclass(frozen=True)
class Call:
    """One ask, as it reaches some clients.

    Attributes
    ----------
    method : callable
        The client method.
    round : int
        The current round.
    asked : Tensor (k,)
        Numbers of the asked clients.
    present : Tensor (p,)
        Positions among them, ascending, of those that are not away.
    payload : mapping
        What they receive: one row for each of the k, or marked as shared.
    average : Tensor (k,), optional
        Weights, where only the weighted mean of the answers is wanted.
    number : int
        How often the method was called before in this round.
    """

    method: Callable[..., Any]
    round: int
    asked: Tensor
    present: Tensor
    payload: Mapping[str, Any]
    average: Tensor | None = None
    number: int = 0


@dataclass
class Reply:
    """What came back.

    Attributes
    ----------
    positions : Tensor (a,)
        Positions, among the asked clients and ascending, of those that answered.
    values : mapping or Averaged
        Their answers, one row each, or the weighted sum of them.
    received, sent : mapping
        Bytes of one client's share of each payload value and of each answer, by kind.
    peers : mapping
        For answers that went to other clients, their numbers ``(a, m)``.
    failed : list of (int, str)
        Positions of clients that failed, and why.
    """

    positions: Tensor
    values: Mapping[str, Value] | Averaged
    received: dict[str, Sizes] = field(default_factory=dict)
    sent: dict[str, Sizes] = field(default_factory=dict)
    peers: dict[str, Tensor] = field(default_factory=dict)
    failed: list[tuple[int, str]] = field(default_factory=list)


class SiteStore:
    """The state of the clients of one chunk, as their site sees it."""

    def __init__(self, bank: SiteBank, rows: Tensor, asked: Tensor) -> None:
        self.bank, self.rows, self.asked, self.call = bank, rows, asked, bank.new_call()

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; the rows of ``default`` for clients that have none."""
        return self.bank.get(name, self.rows, self.call, default)

    def set(self, name: str, value: Any) -> None:
        """Stage a value."""
        self.bank.set(name, self.rows, value, self.asked, self.call)


class Sites:
    """Some clients of a federation, in chunks of rows.

    Parameters
    ----------
    federation : Federation
        These clients and their data, on the device of ``stack``.
    algorithm, stack, settings : Algorithm, Stack, Settings
        The method, the architecture and how the run goes.
    numbers : Tensor (k,), optional
        The clients' numbers in the whole federation, ascending; default 0 to k - 1.
    roster : int, optional
        Clients of the whole federation; default k.

    Row i of the federation and of the bank belongs to client ``numbers[i]``; method code sees the latter.
    """

    def __init__(
        self,
        federation: Federation,
        algorithm: Algorithm,
        stack: Stack,
        settings: Settings,
        *,
        numbers: Tensor | None = None,
        roster: int | None = None,
    ) -> None:
        self.federation, self.algorithm, self.stack = federation, algorithm, stack
        self.numbers = torch.arange(federation.k) if numbers is None else numbers
        self.company: Company = Alone()
        theta = stack.initial(initial_seed(settings))
        # models that all fit a core's cache train faster in one stack on one core than divided among several
        small = federation.k * sum(theta.bytes_per_row()) <= CHUNK_BYTES
        cores = min(settings.workers or MACHINE_THREADS, MACHINE_THREADS)
        self.threads = settings.threads or (1 if small else cores)
        self.chunk = settings.chunk or self._auto_chunk(theta)
        chunks = -(-federation.k // self.chunk)
        self.workers = Workers(min(self.threads, chunks) if stack.device.type == "cpu" else 1, self.threads)
        self.privacy, self.initial = settings.privacy, theta
        self.further = further_metrics(settings.metrics, settings.metric, federation.task, federation.classes)
        self.bank = SiteBank(federation.k, theta, Room.of(settings.client_memory))
        self.statistics = Statistics(self.bank, theta)
        self.context = LocalContext(
            stack, objective_of(federation.task), settings.training, settings.seed, settings.rounds,
            federation.task, federation.classes, roster or federation.k,
        )  # fmt: skip

    def _auto_chunk(self, theta: Models) -> int:
        k, device = self.federation.k, self.stack.device
        if device.type != "cpu":
            free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**33
            return max(1, min(k, int(free / 16 / max(1, sum(theta.bytes_per_row())))))
        for_cache = CHUNK_BYTES // max(1, sum(theta.bytes_per_row()))
        for_workers = -(-k // self.threads)
        return max(1, min(for_cache, for_workers))

    # --- asks ----------------------------------------------------------------------------------------------------
    def answer(self, call: Call) -> Reply:
        """Run a client method at the clients that are present; what they change in their state is staged.

        Raises
        ------
        CoterieError
            The method cannot work with its settings.
        """
        asked = self.rows_of(call.asked)
        gathered = Collected(self.bank, len(asked)) if call.average is None else Averaged(call.average)
        reply = Reply(call.present[:0], {})
        answered: list[Tensor] = []
        peers: dict[str, list[Tensor]] = {}

        def run(at: Tensor) -> tuple[Tensor, dict[str, Sizes], dict[str, Value], dict[str, Tensor], Tensor]:
            arrived = self.arrived(call.payload, at, len(asked))
            self.start(asked[at], asked, call.round)
            site = self.site(asked[at], asked, call.round)
            answer = self._call(call.method, site, self.statistics.arrive(site, arrived))
            index = {name: value.index.cpu() for name, value in answer.items() if isinstance(value, ToPeers)}
            returned = {name: value.value if isinstance(value, ToPeers) else value for name, value in answer.items()}
            leaving = self.statistics.leave(site, returned, index)
            finite = _finite(leaving, site.k)  # as trained: clipping makes of what is not finite no change
            try:
                leaving = self._filtered(call, site, arrived, leaving, index)
            except Refused as error:
                sentence = str(error).replace("policy.", "privacy.")  # where the settings, and not a site, say so
                raise CoterieError(f"{self.algorithm.name}: {sentence}") from error
            return at, _sizes(arrived), {name: _at_the_server(value) for name, value in leaving.items()}, index, finite

        for at, received, returned, index, finite in self.workers.map(run, self.chunks(call.present)):
            good = finite & self.bank.finite(asked[at])
            reply.received, reply.sent = received, _sizes(returned)
            reply.failed += ((int(position), NOT_FINITE) for position in at[~good])
            answered.append(at[good])
            for name, rows in index.items():
                peers.setdefault(name, []).append(rows[good])
            gathered.add(returned, at, asked[at], good)
        if gathered.count:
            reply.positions = torch.cat(answered)
            reply.peers = {name: torch.cat(rows) for name, rows in peers.items()}
            reply.values = gathered if isinstance(gathered, Averaged) else gathered.values()
        return reply

    def arrived(self, payload: Mapping[str, Any], at: Tensor, asked: int) -> dict[str, Value]:
        """What the clients at positions ``at: (r,)`` of the ``asked`` ones receive, where their data are."""
        return {name: _on(for_rows(value, at, asked), self.stack.device) for name, value in payload.items()}

    def _call(self, method: Callable[..., Any], site: Site, payload: Mapping[str, Any]) -> dict[str, Any]:
        try:
            returned = dict(self.company.run(method, site, payload) or {})
        except CoterieError as error:
            raise CoterieError(f"{self.algorithm.name}, round {site.round}: {error}") from error
        except SystemExit as error:
            raise CoterieError(f"{self.algorithm.name}, round {site.round}: its code called sys.exit") from error
        for name, answer in returned.items():
            value = answer.value if isinstance(answer, ToPeers) else answer
            where = f"{type(self.algorithm).__name__}.{getattr(method, '__name__', 'method')} returned {name}"
            if not isinstance(value, Models | Tensor):
                raise TypeError(f"{where} as {type(value).__name__}; client methods return Models and tensors")
            if len(value.lead if isinstance(value, Models) else value.shape) == 0 or len(value) != site.k:
                raise ValueError(f"{where} without one row for each of its {site.k} clients")
        return returned

    def _filtered(
        self,
        call: Call,
        site: Site,
        received: Mapping[str, Value],
        values: dict[str, Any],
        peers: Mapping[str, Tensor],
    ) -> dict[str, Any]:
        """What clients send, clipped and noised where the settings say so; noise by client, round and call."""
        if (policy := self.privacy) is None or not values:
            return values

        def filtered(rows: slice, generator: torch.Generator | None) -> dict[str, Value]:
            answer, _ = filter_answer(
                policy, {name: value[rows] for name, value in received.items()},
                {name: value[rows] for name, value in values.items()}, generator, initial=self.initial,
                differences=self.algorithm.differences, peers={name: index[rows] for name, index in peers.items()},
            )  # fmt: skip
            return answer

        if policy.noise is None:
            return filtered(slice(None), None)
        again = f" {call.number}" if call.number else ""
        keys = site.key(f"noise on {getattr(call.method, '__name__', 'an answer')}{again}")
        each = [
            filtered(slice(row, row + 1), torch.Generator().manual_seed(int(key) % 2**63))
            for row, key in enumerate(keys)
        ]
        return {name: _joined([answer[name] for answer in each]) for name in values}

    def commit(self, good: Tensor) -> None:
        """End a round: what clients with ``good: (k,)`` bool have staged becomes their state, the rest is dropped."""
        self.bank.commit(good)

    # --- sites ---------------------------------------------------------------------------------------------------
    def rows_of(self, clients: Tensor) -> Tensor:
        """The rows here of ``clients: (c,)``, by number."""
        return torch.searchsorted(self.numbers, clients)

    def site(self, rows: Tensor, asked: Tensor, round: int) -> Site:
        """A site of the clients in ``rows: (r,)``; ``asked`` are the rows of all clients of the ask."""
        chosen = rows.tolist()
        return Site(
            clients=self.numbers[rows],
            names=[self.federation.names[row] for row in chosen],
            round=round,
            train=self.federation.train.select(chosen),
            validation=self.federation.validation.select(chosen),
            context=self.context,
            store=SiteStore(self.bank, rows, asked),
        )

    def chunks(self, rows: Tensor) -> list[Tensor]:
        """Runs of at most ``chunk`` rows; none of no rows."""
        return [rows[first : first + self.chunk] for first in range(0, len(rows), self.chunk)]

    def start(self, rows: Tensor, asked: Tensor, round: int) -> None:
        """Let clients in ``rows`` that are contacted for the first time declare their state."""
        new = rows[~(self.bank.started | self.bank.starting)[rows]]
        if len(new):
            self.algorithm.start(self.site(new, asked, round))
            self.bank.starting[new] = True

    # --- evaluation ----------------------------------------------------------------------------------------------
    def predictors(self, offer: Mapping[str, Any], round: int) -> Iterator[tuple[Tensor, Predictor]]:
        """Rows, chunk by chunk, and what their clients predict with, given the server's ``offer`` to all of them."""
        for rows in self.chunks(torch.arange(self.federation.k)):
            arrived = self.arrived(offer, rows, self.federation.k)
            new = rows[~self.bank.started[rows]]
            if len(new):  # never contacted so far: what it would start with, without making it its state
                self.algorithm.start(self.site(new, rows, round))
            site = self.site(rows, rows, round)
            predictor = self.company.run(self.algorithm.personal, site, self.statistics.arrive(site, arrived))
            self.bank.discard()
            yield rows, predictor

    def evaluate(self, offer: Mapping[str, Any], round: int) -> dict[str, dict[str, Tensor]]:
        """``split -> metric -> (k,)`` of what the clients predict with."""
        return self.measure(self.predictors(offer, round))

    def measure(self, predictors: Iterable[tuple[Tensor, Predictor]]) -> dict[str, dict[str, Tensor]]:
        """``split -> metric -> (k,)`` of what `predictors` gave."""
        parts: dict[str, dict[str, list[Tensor]]] = {}
        for rows, predictor in predictors:
            for split in ("validation", "test"):
                data = self.federation.split(split)
                if data.total == 0:
                    continue
                chosen = data.select(rows.tolist())
                values = self.company.measure(
                    self.stack, predictor, chosen, rows, split, self.federation.task, self.further
                )
                for metric, value in values.items():
                    parts.setdefault(split, {}).setdefault(metric, []).append(value.cpu())
        return {
            split: {metric: torch.cat(pieces) for metric, pieces in metrics.items()} for split, metrics in parts.items()
        }

    def strengths(self) -> dict[str, NDArray[np.float64]]:
        """The numbers of clients that the method wants followed, ``(k,)`` each; NaN where one has none yet."""
        found = {}
        for name in self.algorithm.strengths:
            values = torch.full((self.federation.k,), torch.nan, dtype=torch.float64)
            own, rows = self.bank.known(name)
            values[own] = rows.double().cpu()
            found[name] = values.numpy()
        return found

    # --- checkpoints ---------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The state of the clients."""
        return bank_state(self.bank)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state of the clients, wherever its rows lie."""
        columns = {
            leaf: {**column, **{key: _on(column[key], self.stack.device) for key in ("default", "rows")}}
            for leaf, column in state["bank"].items()
        }
        restore_bank(self.bank, {**state, "bank": columns})


def initial_seed(settings: Settings) -> int:
    """The seed of the initial model theta^0."""
    return server_key(settings.seed, 0, "initial weights") % 2**63


def stack_for(federation: Federation, model: ModelSpec, settings: Settings) -> Stack:
    """The architecture, with the executor that the settings name or ask to find out, on their device."""

    def stack_with(executor: Executor) -> Stack:
        return Stack(
            lambda: build_model(
                model.name, federation.feature_shape, federation.classes, federation.task, **model.options
            ),
            federation.feature_shape,
            executor=executor,
            policy=settings.buffers,
            dtype=getattr(torch, settings.dtype),
            device=device_of(settings),
            precision=settings.precision,
        )

    if settings.executor == "fastest":
        return fastest(stack_with, federation.train, settings.training, objective_of(federation.task))
    return stack_with(settings.executor)


def device_of(settings: Settings) -> torch.device:
    """The device that the settings name; ``CoterieError`` where it is not there."""
    try:
        device = torch.device(settings.device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        problem = str(error).splitlines()[0]
        raise CoterieError(f"device '{settings.device}' is not available here: {problem}; use cpu") from error
    return device


def _finite(values: Mapping[str, Value], rows: int) -> Tensor:
    """Which of the rows are finite in all values, ``(rows,)`` bool."""
    good = torch.ones(rows, dtype=torch.bool)
    for value in values.values():
        if isinstance(value, Models):
            good &= value.finite().cpu()
        elif value.is_floating_point():
            good &= finite_rows(value).cpu()
    return good


def _joined(parts: Sequence[Value]) -> Value:
    """Rows below one another."""
    models, tensors = ([part for part in parts if isinstance(part, kind)] for kind in (Models, Tensor))
    return stack_rows(models) if models else torch.cat(tensors)  # type: ignore[arg-type]


def _sizes(values: Mapping[str, Value]) -> dict[str, Sizes]:
    """Bytes of one client's share of each value."""
    return {name: weigh(value, len(value)) for name, value in values.items()}


def _on(value: Any, device: torch.device) -> Any:
    """Models and tensors where the clients' data are; those of a server in this process lie there already."""
    if isinstance(value, Models):
        return value if value.device.type == device.type else value.to(device)
    return value.to(device) if isinstance(value, Tensor) else value


def _at_the_server(value: Value) -> Value:
    """Models stay where they are trained; summaries and numbers are worked with on the CPU."""
    return value.cpu() if isinstance(value, Tensor) else value
