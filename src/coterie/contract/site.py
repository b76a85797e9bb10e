"""A site: k >= 1 clients as an algorithm's client code sees them. Rows never mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.contract.state import ClientStore, owned
from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.models import Models, Stack
from coterie.training import (
    BatchPlan,
    Fitted,
    Given,
    Memories,
    Memory,
    Nothing,
    Objective,
    ProxPlace,
    Step,
    TrainingSettings,
    batch_gradient,
    fit,
    full_gradient,
    hits,
    means,
    own_steps,
    per_example,
)
from coterie.training.keys import client_keys

SplitName = Literal["train", "validation"]


@dataclass(frozen=True)
class LocalContext:
    """What the client code of one run shares: the architecture, the loss, the settings, the seed."""

    stack: Stack
    objective: Objective
    training: TrainingSettings
    seed: int
    rounds: int
    task: str
    classes: int
    roster: int = 1


@dataclass(frozen=True)
class _OptimiserStates:
    """What the clients' own optimisers keep, as attributes of the clients: ``optimiser``, ``optimiser private``."""

    store: ClientStore
    training: TrainingSettings
    optimiser: str
    used: set[str]

    def recall(self, name: str, models: Models) -> Memory | None:
        blank, attribute = Memory.blank(self.training, models), self._attribute(name)
        try:
            if attribute in self.used:
                raise CoterieError(f"{attribute} has trained already in this call")
            self.used.add(attribute)
            found = self.store.get(attribute, {**blank.state, "steps": blank.steps})
        except CoterieError as error:
            raise CoterieError(
                "under training.optimizer_state persistent two trainings of a round share one optimiser; tell them "
                f"apart by fit(..., optimiser=NAME), or None for a fresh one ({error})"
            ) from error
        return Memory({kind: found[kind] for kind in blank.state}, found["steps"])

    def keep(self, name: str, memory: Memory) -> None:
        self.store.set(self._attribute(name), owned({**memory.state, "steps": memory.steps}))

    def _attribute(self, name: str) -> str:
        return " ".join(part for part in ("optimiser", self.optimiser, name) if part)


class Site:
    """k clients with their private data and their own persistent state.

    Attributes:
        clients: ``(k,)`` numbers of the clients; ``names`` their names; ``k`` how many.
        n: ``(k,)`` training examples of each, whatever their weights.
        round: the current round.
        train, validation: their data. Test data never reach a site.
        theta: ``(k,)`` each client's own model, the common theta^0 at first.
    """

    _own = frozenset({"clients", "names", "round", "train", "validation", "context", "_store", "_optimisers"})

    def __init__(
        self,
        *,
        clients: Tensor,
        names: Sequence[str],
        round: int,
        train: ClientData,
        validation: ClientData,
        context: LocalContext,
        store: ClientStore,
    ) -> None:
        self.clients, self.names, self.round = clients, tuple(names), round
        self.train, self.validation = train, validation
        self.context, self._store = context, store
        self._optimisers: set[str] = set()  # those that this call has used

    # --- who and what --------------------------------------------------------------------------------------------
    @property
    def k(self) -> int:
        """Number of clients at this site."""
        return len(self.names)

    @property
    def K(self) -> int:
        """Number of clients in the federation."""
        return self.context.roster

    @property
    def n(self) -> Tensor:
        """Training examples of each client, ``(k,)`` int64."""
        return self.train.n

    @property
    def epochs(self) -> int:
        """Epochs of one local training."""
        return self.context.training.epochs

    @property
    def lr(self) -> float:
        """The learning rate of this round, after the schedule."""
        training = self.context.training
        return training.lr * training.schedule(max(self.round, 1), self.context.rounds)

    @property
    def classes(self) -> int:
        """Number of classes (of targets in regression)."""
        return self.context.classes

    @property
    def task(self) -> str:
        """``classification`` or ``regression``."""
        return self.context.task

    def split(self, name: str) -> ClientData:
        """The ``train`` or ``validation`` data."""
        if name not in ("train", "validation"):
            raise ValueError(f"a site has the splits train and validation, not {name!r}")
        return self.train if name == "train" else self.validation

    def class_counts(self, split: SplitName = "train") -> Tensor:
        """Examples of each class, ``(k, C)`` int64."""
        data = self.split(split)
        positions = torch.arange(int(data.offsets[0]), int(data.offsets[-1]), device=data.offsets.device)
        targets = data.targets[data.rows(positions)]
        counts = torch.zeros(self.k, self.classes, dtype=torch.int64, device=targets.device)
        return counts.index_put_((data.owners(), targets), torch.ones_like(targets), accumulate=True)

    def zeros(self, *shape: int) -> Tensor:
        """``(k, *shape)`` float64 zeros where the clients' data are, for summaries and state."""
        return torch.zeros(self.k, *shape, dtype=torch.float64, device=self.n.device)

    def key(self, purpose: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """One random key per client for this round and purpose, ``(k,)`` uint64."""
        return client_keys(self.context.seed, self.names, self.round, purpose)

    # --- measuring -----------------------------------------------------------------------------------------------
    def loss(self, split: SplitName, models: Models) -> Tensor:
        """Each client's mean loss, ``(k,)`` float64; models with candidates ``(k, c)`` give ``(k, c)``.

        A client without validation data is measured on its training data.
        """
        return self._measure(split, models, "loss")

    def accuracy(self, split: SplitName, models: Models) -> Tensor:
        """Each client's accuracy as a fraction, ``(k,)`` float64, or ``(k, c)`` for candidates."""
        return self._measure(split, models, "accuracy")

    def _measure(self, split: SplitName, models: Models, name: str) -> Tensor:
        data = self.split(split)
        if len(models.lead) == 2:
            columns = [self._measure(split, models.candidate(c), name) for c in range(models.lead[1])]
            return torch.stack(columns, dim=1)
        statistic = self.context.objective if name == "loss" else hits
        values = means(self.context.stack, models, data, {name: statistic})[name]
        if split == "validation" and bool((data.n == 0).any()):
            return torch.where(data.n == 0, self._measure("train", models, name), values)
        return values

    def example_losses(self, split: SplitName, models: Models) -> Tensor:
        """The loss of every example, flat over the clients: ``(n,)`` float64, or ``(n, c)`` for ``(k, c)`` candidates.

        Client i's examples are ``offsets[i] - offsets[0]`` to ``offsets[i + 1] - offsets[0]`` of the split.
        """
        if len(models.lead) == 2:
            columns = [self.example_losses(split, models.candidate(c)) for c in range(models.lead[1])]
            return torch.stack(columns, dim=1)
        return per_example(self.context.stack, models, self.split(split), self.context.objective)

    def per_client(self, values: Tensor, split: SplitName = "train") -> Tensor:
        """The mean of ``values: (n, ...)``, flat over the clients' examples, for each client: ``(k, ...)``.

        Examples count by their weights, where the data have such.
        """
        data = self.split(split)
        owners, whole = data.owners(), data.sizes.to(values)
        if data.weights is not None:
            first = int(data.offsets[0])
            weights = data.weights[first : first + data.total].to(values)
            values = values * weights.view(-1, *[1] * (values.ndim - 1))
        total = values.new_zeros(self.k, *values.shape[1:]).index_add_(0, owners, values)
        return total / whole.where(whole > 0, 1.0).view(-1, *[1] * (values.ndim - 1))

    def features(self, models: Models, split: SplitName = "train") -> list[Tensor]:
        """What enters the head, for each client ``(n_i, h)``."""
        data = self.split(split)
        found = []
        for row in range(self.k):
            inputs, _ = data.client(row)
            one = {name: tensor[row : row + 1] for name, tensor in models.tensors.items()}
            with torch.no_grad():
                found.append(self.context.stack.features(one, inputs.unsqueeze(0))[0].flatten(1))
        return found

    def gradient(
        self,
        models: Models,
        where: Step | SplitName,
        *,
        weights: Tensor | None = None,
        objective: Objective | None = None,
        exact: bool = False,
    ) -> Models:
        """The gradient of the mean loss: of a split in evaluation mode, ``(k,)`` rows, or of one step's batches.

        For a step, ``models`` are all k rows and the result holds the rows that still train; batch statistics that
        move meanwhile wait for ``step.update``. ``weights`` replace the factor 1/n of each example; the weights of the
        clients' own data multiply it. A client without validation data takes the gradient on its training data.
        ``exact`` is for differences of gradients at close points, of which mixed precision would leave nothing: then
        the gradient is one of full precision.
        """
        objective = objective or self.context.objective
        stack = self.context.stack.in_full_precision if exact else self.context.stack
        if not isinstance(where, Step):
            found = full_gradient(stack, models, self.split(where), objective, weights)
            without = self.split(where).n == 0
            if where == "validation" and weights is None and bool(without.any()):
                found[without] = full_gradient(stack, models, self.train, objective)[without]
            return found
        own = models[where.rows]
        own.materialise()
        where.buffers = {name: own.tensors[name].clone() for name in models.layout.buffers}
        share = where.weights if weights is None else where.weighed(weights)
        gradients = batch_gradient(
            stack, {**own.tensors, **where.buffers}, models.layout.trained(), where.inputs, where.targets, share,
            objective, sizes=where.sizes, keys=where.keys,
        )  # fmt: skip
        where.unused = frozenset(models.layout.parameters) - gradients.keys()
        full = {name: gradients.get(name, torch.zeros_like(tensor)) for name, tensor in own.parameters()}
        return Models(replace(models.layout, buffers=()), full)

    # --- training ------------------------------------------------------------------------------------------------
    def fit(
        self,
        models: Models,
        *,
        anchor: Models | None = None,
        strength: Tensor | float = 0.0,
        prox_place: ProxPlace = "gradient",
        epochs: int | None = None,
        steps: int | None = None,
        batches: str = "train",
        only: str = "all",
        lr: float | None = None,
        momentum: Models | None = None,
        optimiser: str | None = "",
        weights: Tensor | None = None,
    ) -> Fitted:
        """Train copies of ``models: (k,)`` on the training data; returns the models and the steps taken.

        ``only`` names the part that is trained: ``head``, ``body``, ``last 2``, ``before last 2`` or ``all``.
        ``weights``, flat over the clients' examples, multiply the loss of each in the mean of its batch, as the weights
        of the clients' own data do.

        ``strength: (k,)`` or one number adds ``strength * (theta - anchor)`` to the gradient, or after momentum, or
        after the optimiser's step. Two fits with the same ``batches`` name in a round see the same batches. SGD's
        momentum starts at zero, or at ``momentum: (k,)``, which holds it again afterwards. Under
        ``optimizer_state: persistent`` the client's ``optimiser`` of that name goes on where it ended in an earlier
        round; a method that trains several models in a round gives each its name, or None to what is nobody's model.

        Raises ``CoterieError`` where learning rate times strength exceeds 1, which makes the pull overshoot.
        """
        training = self.context.training
        rate = self.lr if lr is None else lr
        pull = None
        if anchor is not None:
            pull = torch.as_tensor(strength, dtype=torch.float64, device=models.device).expand(self.k)
            self._check_pull(pull, rate)
        memories = self._memories(optimiser, momentum)
        memory = memories.recall("", models[only])
        fitted = fit(
            self.context.stack, models, self.train, self._plan(batches, epochs, steps), training, rate,
            self.context.objective, dropout_keys=self._dropout_keys(batches), anchor=anchor, strength=pull,
            prox_place=prox_place, only=only, memory=memory, example_weights=weights,
        )  # fmt: skip
        if memory is not None:
            memories.keep("", memory)
        return fitted

    def by_epoch(
        self, models: Models, epochs: int, *, batches: str = "train", momentum: Models | None = None, **options: Any
    ) -> Iterator[Models]:
        """`fit` one epoch after the other: the models after each of ``epochs`` epochs; ``options`` are those of `fit`.

        SGD's momentum goes on from epoch to epoch; Adam starts afresh in each. No optimiser of the client is used.
        """
        momentum = models["all"].zeros() if momentum is None else momentum
        for epoch in range(epochs):
            own: dict[str, Any] = {"batches": f"{batches} {epoch}", "momentum": momentum, "optimiser": None}
            models = self.fit(models, epochs=1, **own, **options).models
            yield models

    def steps(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batches: str = "train",
        momentum: Models | None = None,
    ) -> Iterator[Step]:
        """The loop that ``fit`` is made of, for methods with their own step.

        ``for step in site.steps(): theta = step.update(theta, site.gradient(theta, step) + drift[step.rows])``

        SGD's momentum starts at zero, or at ``momentum: (k,)``, which holds it again when the loop has ended. Under
        ``optimizer_state: persistent`` the client's optimisers go on, by the names that ``step.update`` gives them.
        """
        plan, keys = self._plan(batches, epochs, steps), self._dropout_keys(batches)
        return own_steps(self.train, plan, self.context.training, self.lr, keys, self._memories("", momentum))

    def _memories(self, optimiser: str | None, momentum: Models | None) -> Memories:
        """What the optimisers of one training go on from."""
        training = self.context.training
        if momentum is not None and training.optimizer == "sgd":
            return Given(momentum)
        if optimiser is None or training.optimizer_state == "fresh" or not training.running_means:
            return Nothing()
        return _OptimiserStates(self._store, training, optimiser, self._optimisers)

    def _plan(self, batches: str, epochs: int | None, steps: int | None) -> BatchPlan:
        training = self.context.training
        if epochs is None and steps is None:
            epochs = training.epochs
        counts, starts = self.train.n.cpu().numpy(), self.train.offsets[:-1].cpu().numpy()
        return BatchPlan(
            counts, starts, self.key(f"batches:{batches}"), training.batch_size, epochs=epochs, steps=steps,
            drop_last=training.drop_last, smallest=self._smallest_batch(),
            dtype=self.context.stack.dtype, device=self.context.stack.device,
        )  # fmt: skip

    def _smallest_batch(self) -> int:
        """The examples that the model needs in a batch, which every client must have."""
        if self.context.stack.smallest_batch == 1:
            return 1
        if self.context.training.batch_size < 2:
            raise CoterieError("batch normalisation needs batches of two examples or more; raise training.batch_size")
        if bool((self.n < 2).any()):
            name = self.names[int(self.n.argmin())]
            raise CoterieError(
                f"client {name} has a single training example, from which batch normalisation cannot learn; leave the "
                "client out or choose a model without batch normalisation"
            )
        return 2

    def _dropout_keys(self, batches: str) -> Tensor:
        keys = self.key(f"dropout:{batches}").astype(np.int64)
        return torch.from_numpy(keys).to(self.context.stack.device)

    def _check_pull(self, strength: Tensor, rate: float) -> None:
        largest = float(strength.nan_to_num().max()) if len(strength) else 0.0
        if rate * largest > 1.0 + 1e-12:
            name = self.names[int(strength.nan_to_num().argmax())]
            raise CoterieError(
                f"client {name}: a proximal strength of {largest:.4g} times the learning rate {rate:.4g} exceeds 1, so "
                "that each step overshoots its anchor; lower the strength or training.lr"
            )

    # --- state ---------------------------------------------------------------------------------------------------
    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            self._store.set(name, owned(value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._store.get(name)
        except KeyError:
            raise AttributeError(f"site.{name} was never set; declare it in start(site)") from None
