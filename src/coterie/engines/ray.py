"""The Ray engine: the clients live at actors of a cluster, some at each; the server lives in this process.

A client's data and state stay at its actor: a round moves what its asks carry, an evaluation its results. State comes
here for a checkpoint only, and what clients predict with where a best round is kept.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract import Algorithm, Predictor
from coterie.engines.base import Engine, Evaluations
from coterie.engines.parcel import Parcel
from coterie.engines.room import SHARE, memory
from coterie.engines.settings import Settings
from coterie.engines.shares import called, common, divided, members, one_reply, one_state, payload_for, state_for
from coterie.engines.sites import Call, Reply, Sites, device_of, stack_for
from coterie.engines.workers import MACHINE_THREADS
from coterie.errors import CoterieError, SitesLost, describe
from coterie.federation.federation import Federation
from coterie.models import ModelSpec
from coterie.models.factory import find_factory
from coterie.models.factory import model as register_model

REACH_SECONDS = 10.0
"""How long a cluster may take to answer at its address."""
START_SECONDS = 300.0
"""How long the cluster may take to start the actors."""
CLOSE_SECONDS = 10.0
"""How long an actor may take to end what it is doing before it is ended."""

_SPARE: list[tuple[Any, Any]] = []
"""Actors of engines that were closed, each with what it was started as: it takes seconds to start one."""


def library() -> Any:
    """The package ray; ``CoterieError`` where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise CoterieError("engine: ray needs the package Ray: pip install 'coterie[ray]'.") from error
    return ray


class Share:
    """The clients of one actor; what it returns is on its way to the server."""

    def find_modules(self, paths: Sequence[str]) -> None:
        """Import from where the server imports, as far as there are such folders here."""
        sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]

    def build(
        self,
        clients: range,
        federation: Federation,
        algorithm: Algorithm,
        model: ModelSpec,
        factory: Callable[..., Any],
        settings: Settings,
        roster: int,
    ) -> dict[str, Any]:
        """Take ``clients`` in; how they are executed here."""
        try:
            find_factory(model.name)
        except CoterieError:  # it was registered by a script that only the server has run
            register_model(model.name)(factory)
        stack = stack_for(federation, model, settings)
        self.sites = Sites(
            federation.to(device_of(settings)), algorithm, stack, settings,
            numbers=torch.arange(clients.start, clients.stop), roster=roster,
        )  # fmt: skip
        return {"executor": stack.executor, "chunk": self.sites.chunk, "device": str(stack.device)}

    def clear(self) -> None:
        """Forget the clients."""
        del self.sites

    def answer(
        self,
        method: Callable[..., Any],
        shared: Mapping[str, Any],
        round: int,
        where: tuple[Tensor, Tensor, int],
        own: Mapping[str, Any],
        average: Tensor | None,
    ) -> Parcel:
        """The reply to a call: ``shared`` and ``own`` are its payload."""
        asked, present, number = where
        return Parcel(self.sites.answer(Call(method, round, asked, present, {**shared, **own}, average, number)))

    def commit(self, good: Tensor) -> None:
        """End a round."""
        self.sites.commit(good)

    def predictors(self, shared: Mapping[str, Any], own: Mapping[str, Any], round: int) -> Parcel:
        """Rows and what their clients predict with, in chunks."""
        return Parcel(list(self.sites.predictors({**shared, **own}, round)))

    def evaluate(self, shared: Mapping[str, Any], own: Mapping[str, Any], round: int) -> Parcel:
        """Metrics of the clients by split and name."""
        return Parcel(self.sites.evaluate({**shared, **own}, round))

    def strengths(self) -> Parcel:
        """The numbers of clients that the method wants followed."""
        return Parcel(self.sites.strengths())

    def state_dict(self) -> Parcel:
        """The state of the clients."""
        return Parcel(self.sites.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state of the clients."""
        self.sites.load_state_dict(state)


@dataclass(frozen=True)
class _Actor:
    """An actor as the server sees it: its clients, and a handle."""

    clients: range
    handle: Any

    @property
    def rows(self) -> slice:
        """Where its clients are among all."""
        return slice(self.clients.start, self.clients.stop)


class RayEngine(Engine):
    """One algorithm, one federation, one seed on a Ray cluster; ``close`` ends its actors.

    Parameters
    ----------
    federation, algorithm, model, settings
        As for `Simulation`; ``settings.threads`` are the CPUs of each actor, by default one, and ``settings.device``
        is that of the actors, where ``cuda`` takes one GPU for each.
    address : str, optional
        A running cluster: ``auto``, or ``host:port``; by default one is started on this machine, and ends with this
        process.
    actors : int, optional
        How many; default as many as the cluster has CPUs (or GPUs) for. Never more than clients.

    Raises
    ------
    CoterieError
        Ray is missing, there is no such cluster, or it has not room for the actors.
    """

    def __init__(
        self,
        federation: Federation,
        algorithm: Algorithm,
        model: ModelSpec,
        settings: Settings,
        *,
        address: str | None = None,
        actors: int | None = None,
    ) -> None:
        settings = replace(settings, threads=settings.threads or 1)
        mine = "auto" if settings.executor == "fastest" else settings.executor  # actors find out where they train
        super().__init__(federation, algorithm, model, replace(settings, device="cpu", executor=mine))
        self._actors: list[_Actor] = []
        self._kind = ("", settings.threads, False)
        self._ray = library()
        _connect(self._ray, address, (actors or 0) * (settings.threads or 1))
        shares = divided(self.federation.train.n, self._room(settings, actors))
        try:
            budget = self._memory(settings) / len(shares)
            self._start(shares, model, replace(settings, client_memory=budget))
        except BaseException:
            self.close()
            raise

    def _room(self, settings: Settings, wanted: int | None) -> int:
        """How many actors there will be."""
        resources = self._ray.cluster_resources()
        room = int(resources.get("CPU", 0) // (settings.threads or 1))
        what = f"{int(resources.get('CPU', 0))} CPUs"
        if settings.device != "cpu" and resources.get("GPU", 0) < room:
            room, what = int(resources.get("GPU", 0)), f"{int(resources.get('GPU', 0))} GPUs"
        if room < (wanted or 1):
            raise CoterieError(
                f"ray.actors: the cluster has {what}, which is not enough for {wanted or 1} actors with "
                f"{settings.threads} threads each; lower ray.actors or threads, or add nodes."
            )
        return min(wanted or room, self.K)

    def _memory(self, settings: Settings) -> float:
        """GB for the state of all clients; a share of the cluster's memory where no budget is given."""
        if settings.client_memory is not None:
            return settings.client_memory
        return SHARE * float(self._ray.cluster_resources().get("memory", memory())) / 1e9

    def _start(self, shares: Sequence[range], model: ModelSpec, settings: Settings) -> None:
        # a GPU that an actor is given is the only one it sees
        device = "cuda" if settings.device.startswith("cuda") else settings.device
        settings, factory = replace(settings, device=device), find_factory(model.name)
        self._kind = (self._ray.get_runtime_context().get_job_id(), settings.threads, settings.device != "cpu")
        handles = self._handles(len(shares))
        self._actors = [_Actor(clients, handle) for clients, handle in zip(shares, handles, strict=True)]
        for actor in self._actors:
            actor.handle.find_modules.remote([path or os.getcwd() for path in sys.path])
        found: list[dict[str, Any]] = []
        if settings.executor == "fastest":  # what the first one measures is for all
            found = self._built(self._actors[:1], model, factory, settings)
            settings = replace(settings, executor=found[0]["executor"])
        if others := self._actors[len(found) :]:
            found += self._built(others, model, factory, settings)
        self._executor, self._device = found[0]["executor"], found[0]["device"]
        self._chunk = max(how["chunk"] for how in found)

    def _built(
        self, actors: Sequence[_Actor], model: ModelSpec, factory: Callable[..., Any], settings: Settings
    ) -> list[dict[str, Any]]:
        """Let actors take their clients in; how each executes them."""
        alike = (self.algorithm, model, factory, settings, self.K)
        built = [
            actor.handle.build.remote(actor.clients, Parcel(members(self.federation, actor.clients)), *alike)
            for actor in actors
        ]
        ready, _ = self._ray.wait(built, num_returns=len(built), timeout=START_SECONDS)
        if len(ready) < len(built):
            raise CoterieError(
                f"the Ray cluster has started {len(ready)} of {len(built)} actors within {START_SECONDS:.0f} s: others "
                "may hold its CPUs; lower ray.actors, or wait for them."
            )
        try:
            return [found for _, found in self._each(actors, built)]
        except SitesLost as error:
            reason = str(error.__cause__).strip().splitlines()[-1].strip()
            raise CoterieError(
                f"a Ray actor cannot be set up ({reason}): every node needs this Coterie, and the modules of the "
                "method and the model."
            ) from error

    def _handles(self, count: int) -> list[Any]:
        """So many actors, spare ones first; others that are spare are ended, for they hold CPUs."""
        found = [handle for kind, handle in _SPARE if kind == self._kind][:count]
        for kind, handle in _SPARE:
            if kind[0] == self._kind[0] and handle not in found:
                self._ray.kill(handle)
        _SPARE.clear()
        _, cpus, gpu = self._kind
        remote = self._ray.remote(num_cpus=cpus, num_gpus=int(gpu), max_restarts=0, scheduling_strategy="SPREAD")(Share)
        return found + [remote.remote() for _ in range(count - len(found))]

    @property
    def resolved(self) -> dict[str, Any]:
        """How this run is executed: what must be equal for bit-identical results."""
        return {
            "engine": "ray",
            "actors": len(self._actors),
            "executor": self._executor,
            "chunk": self._chunk,
            "threads": self.settings.threads,
            "device": self._device,
            "dtype": self.settings.dtype,
            "precision": self.settings.precision,
        }

    # --- what an engine gives ------------------------------------------------------------------------------------
    def _reach(self, call: Call) -> Reply:
        shared = self._put(common(call.payload))
        asked: list[tuple[_Actor, Tensor]] = []
        replies: list[Any] = []
        for actor in self._actors:
            at, own = called(call, actor.clients)
            if len(own.present):
                where = Parcel((own.asked, own.present, own.number))
                answer = actor.handle.answer.remote(
                    call.method, shared, call.round, where, Parcel(own.payload), Parcel(own.average)
                )
                asked.append((actor, at))
                replies.append(answer)
        came = self._each([actor for actor, _ in asked], replies)
        return one_reply(call, [(at, reply) for (_, at), (_, reply) in zip(asked, came, strict=True)])

    def _commit(self, good: Tensor) -> None:
        self._results([actor.handle.commit.remote(Parcel(good[actor.rows])) for actor in self._actors])

    def _predict(self, offer: Mapping[str, Any]) -> Iterator[tuple[Sequence[int], Predictor]]:
        for actor, chunks in self._each(self._actors, self._offered("predictors", offer)):
            for rows, predictor in chunks:
                yield (rows + actor.clients.start).tolist(), predictor

    def _measure(self, offer: Mapping[str, Any]) -> Evaluations:
        whole: dict[str, dict[str, NDArray[np.float64]]] = {}
        for actor, measured in self._each(self._actors, self._offered("evaluate", offer)):
            for split, metrics in measured.items():
                for metric, values in metrics.items():
                    # NaN stays where none of an actor's clients has data of this split
                    table = whole.setdefault(split, {}).setdefault(metric, np.full(self.K, np.nan))
                    table[actor.rows] = values.numpy()
        return whole

    def _strengths(self) -> dict[str, NDArray[np.float64]]:
        if not self.algorithm.strengths:
            return {}
        parts = self._results([actor.handle.strengths.remote() for actor in self._actors])
        return {name: np.concatenate([part[name] for part in parts]) for name in self.algorithm.strengths}

    def _offered(self, method: str, offer: Mapping[str, Any]) -> list[Any]:
        """What a method of each actor will return, given what the server offers to its clients."""
        shared, everyone = self._put(common(offer)), self._everyone()
        references = []
        for actor in self._actors:
            own = Parcel(payload_for(offer, everyone[actor.rows], self.K))
            references.append(getattr(actor.handle, method).remote(shared, own, self.round))
        return references

    def site_state(self) -> dict[str, Any]:
        """The state of all clients, fetched from the actors."""
        return one_state(self._results([actor.handle.state_dict.remote() for actor in self._actors]))

    def load_site_state(self, state: Mapping[str, Any]) -> None:
        """Give all clients their state back."""
        self._results(
            [actor.handle.load_state_dict.remote(Parcel(state_for(state, actor.clients))) for actor in self._actors]
        )

    def close(self) -> None:
        """Let the actors forget their clients and wait for the next engine; they end with this process."""
        for actor in self._actors:
            try:
                self._ray.get(actor.handle.clear.remote(), timeout=CLOSE_SECONDS)
                _SPARE.append((self._kind, actor.handle))
            except Exception:  # it is gone, busy or was never built
                with suppress(Exception):
                    self._ray.kill(actor.handle)
        self._actors = []

    # --- the cluster ---------------------------------------------------------------------------------------------
    def _put(self, value: Any) -> Any:
        """A value in the cluster's store, where every actor finds it."""
        return self._ray.put(Parcel(value))

    def _results(self, references: Sequence[Any]) -> list[Any]:
        """What all actors return."""
        return [result for _, result in self._each(self._actors, references)]

    def _each(self, actors: Sequence[_Actor], references: Sequence[Any]) -> Iterator[tuple[_Actor, Any]]:
        """Actor by actor, what it returns; an error of the method's code there is raised here."""
        for actor, reference in zip(actors, references, strict=True):
            try:
                result = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause
                if isinstance(cause, self._ray.exceptions.RayError):
                    raise self._loss(actor, cause) from error
                if not isinstance(cause, CoterieError):
                    cause.add_note(str(error))  # with its traceback there
                raise cause from None
            except self._ray.exceptions.RayError as error:
                raise self._loss(actor, error) from error
            yield actor, result

    def _loss(self, actor: _Actor, error: Exception) -> SitesLost:
        first, last = self.names[actor.clients[0]], self.names[actor.clients[-1]]
        who = f"client {first}" if len(actor.clients) == 1 else f"{len(actor.clients)} clients ({first} to {last})"
        return SitesLost(
            f"the Ray actor of {who} is gone in round {self.round} ({type(error).__name__}), and what they learnt "
            "since the last checkpoint with it: continue from there with coterie resume."
        )


def _connect(ray: Any, address: str | None, cpus: int) -> None:
    """Join the cluster at ``address``, or start one here with at least ``cpus`` CPUs; one that is joined stays so."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without a GPU are told so by the device
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {"address": "local", "num_cpus": max(cpus, MACHINE_THREADS), "include_dashboard": False}
    with _handlers_kept():
        try:
            _reach(address)
            ray.init(log_to_driver=False, logging_level="error", **options)
        except Exception as error:
            where = "on this machine" if address is None else f"at ray.address {address}"
            raise CoterieError(
                f"there is no Ray cluster {where} ({describe(error)}); start one with ray start --head, or leave "
                "ray.address out to have one on this machine."
            ) from error


def _reach(address: str | None) -> None:
    """Raise ``OSError`` at once where nobody listens at ``host:port``; Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, which is ours: the run is saved before it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
