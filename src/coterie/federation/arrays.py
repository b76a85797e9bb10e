"""Arrays and torch Datasets of a user's own, and clients' arrays as examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.examples import Examples
from coterie.federation.federation import FACTS, SPLITS, Federation
from coterie.federation.sides import Official

PARTS = tuple(SPLITS)
SIDES = ("input", "target")
MANY = 1000
"""So many classes are believed, and as many as there are examples; larger labels are codes."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs ``(n, *shape)`` uint8 or floating point, targets ``(n,)`` int64 or ``(n, t)``; labels of folders."""

    inputs: Tensor
    targets: Tensor
    labels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def single(self) -> Arrays:
        """The same in single precision, where they are floating point."""
        x, y = (values.float() if values.is_floating_point() else values for values in (self.inputs, self.targets))
        return replace(self, inputs=x, targets=y)


def as_arrays(inputs: Any, targets: Any, where: str) -> Arrays:
    """Tensors or arrays as inputs and targets.

    Raises:
        CoterieError: no numbers, or more or fewer targets than inputs.
    """
    try:
        x, y = (v if isinstance(v, Tensor) else torch.from_numpy(np.array(v)) for v in (inputs, targets))
    except (TypeError, ValueError, RuntimeError) as error:
        raise CoterieError(f"{where}: inputs and targets must be arrays of numbers.") from error
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise CoterieError(f"{where}: there must be one target for each input, along the first axis of both.")
    if x.is_complex() or y.is_complex():
        raise CoterieError(f"{where}: inputs and targets must be real numbers.")
    if not y.is_floating_point() and y.shape[1:] not in ((), (1,)):
        raise CoterieError(
            f"{where}: the target of an input must be one class, not several: give floating point to predict several "
            "numbers."
        )
    if x.dtype != torch.uint8 and not x.is_floating_point():
        x = x.float()
    if not y.is_floating_point():
        y = y.long()
    if y.is_floating_point():
        return Arrays(x, y[:, None] if y.ndim == 1 else y)
    return Arrays(x, y.flatten() if y.shape[1:] == (1,) else y)


def of_dataset(given: Any, where: str) -> Arrays:
    """Every example of a torch Dataset with a length, a pair of input and target each.

    Raises:
        CoterieError: it is no such Dataset, it is empty, or its examples are no pairs of arrays of one shape.
    """
    if not hasattr(given, "__getitem__") or not hasattr(given, "__len__"):
        raise CoterieError(
            f"{where} gave a {type(given).__name__} where a Federation, inputs and targets, or a torch Dataset is "
            "expected."
        )
    if len(given) == 0:
        raise CoterieError(f"{where}: the Dataset has no examples: give it some, or leave it out.")
    pairs = [given[i] for i in range(len(given))]
    for i, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            found = f"has {len(pair)} parts" if isinstance(pair, tuple | list) else f"is of the type {_type(pair)}"
            raise CoterieError(f"{where}: example {i} {found}: it must be a pair, its input and its target.")
    inputs, targets = (_stacked([pair[side] for pair in pairs], what, where) for side, what in enumerate(SIDES))
    return as_arrays(inputs, targets, where)


def _stacked(values: Sequence[Any], what: str, where: str) -> Tensor:
    """What is known of each of n examples as one tensor ``(n, ...)``; raises ``CoterieError``."""
    tensors: list[Tensor] = []
    for i, value in enumerate(values):
        at = f"{where}: the {what} of example {i}"
        try:
            tensors.append(torch.as_tensor(value))
        except (TypeError, ValueError, RuntimeError) as error:
            raise CoterieError(
                f"{at} is of the type {_type(value)}: make it a tensor, an array or a number in the Dataset, a picture "
                "by a transform, a text by its number among the classes."
            ) from error
        if (shape := tuple(tensors[i].shape)) != (first := tuple(tensors[0].shape)):
            raise CoterieError(f"{at} has the shape {shape}, but that of example 0 {first}: bring all to one shape.")
    return torch.stack(tensors)


def _type(value: Any) -> str:
    return type(value).__name__


def by_client(given: Any, where: str) -> dict[str, dict[str, Arrays]]:
    """What a user gives for several clients, as arrays by client and part.

    Args:
        given: a mapping from names, or a sequence whose clients are then called 0, 1, ...; of each client inputs and
            targets, a torch Dataset, or a mapping from ``train``, ``test`` and maybe ``validation`` to one of these.
        where: for messages.

    Returns:
        For every client ``all``, which is split later, or its parts.

    Raises:
        CoterieError: anything else, or clients of both kinds; the message names the client.
    """
    pairs = given.items() if isinstance(given, Mapping) else enumerate(given) if isinstance(given, Sequence) else None
    if pairs is None:
        raise CoterieError(
            f"{where} gave a {type(given).__name__} where a Federation, or a mapping from clients to inputs and "
            "targets or torch Datasets is expected."
        )
    found: dict[str, dict[str, Arrays]] = {}
    for client, data in pairs:
        name = str(client)
        at = f"{where}, client {name!r}"
        if name in found or not name.strip():
            fault = "is there twice, as different keys" if name in found else "has no name"
            raise CoterieError(f"{at} {fault}: rename it.")
        if isinstance(data, Mapping):
            if not {"train", "test"} <= set(data) <= set(PARTS):
                parts = ", ".join(map(str, data)) or "nothing"
                raise CoterieError(f"{at} has {parts}: give train, test and maybe validation.")
            found[name] = {part: _one(value, f"{at}, {part}") for part, value in data.items()}
        else:
            found[name] = {"all": _one(data, at)}
    if len(split := {"all" in parts for parts in found.values()}) > 1:
        raise CoterieError(f"{where}: some clients come with a test part and some without: give all of them one.")
    if not split:
        raise CoterieError(f"{where} gave no client: give at least one.")
    return found


def _one(data: Any, where: str) -> Arrays:
    pair = isinstance(data, tuple | list) and len(data) == 2
    return as_arrays(data[0], data[1], where) if pair else of_dataset(data, where)


def examples_of_clients(name: str, clients: Mapping[str, Mapping[str, Arrays]], classes: int | None = None) -> Examples:
    """Clients' arrays, joined; natural groups: ``client``.

    Args:
        name: name of the source.
        clients: of each client ``all``, or its parts, as `by_client` gives them.
        classes: number of classes; left out, one more than the largest label.

    Raises:
        CoterieError: the inputs or targets of two clients are not alike, a client has no example, there is one class
            only, or labels are no numbers of classes.
    """
    first_name, first = next((client, next(iter(parts.values()))) for client, parts in clients.items())
    owners: list[str] = []
    parts: list[str] = []
    arrays: list[Arrays] = []
    for client, of_client in clients.items():
        if not any(map(len, of_client.values())):
            raise CoterieError(f"Client {client!r} has no examples: give it some, or leave it out.")
        for part, data in of_client.items():
            data = data.single()
            _check_alike(data, first.single(), client, first_name)
            arrays.append(data)
            owners += [client] * len(data)
            parts += [part] * len(data)
    inputs, targets = (torch.cat([getattr(data, what) for data in arrays]) for what in ("inputs", "targets"))
    regression = targets.is_floating_point()
    if not regression and len(below := (targets < 0).nonzero()):
        row = int(below[0])
        raise CoterieError(
            f"Client {owners[row]!r} has the label {int(targets[row])}, but classes are 0, 1, ...: encode them first."
        )
    if not regression and classes is None:
        classes = int(targets.max()) + 1
        if classes > max(MANY, len(targets)):
            raise CoterieError(
                f"{name!r} has the label {classes - 1:,}, which would make {classes:,} classes of {len(targets):,} "
                "examples: encode the labels as 0, 1, ... first."
            )
        if classes < 2:
            raise CoterieError(f"{name!r} has a single class, so there is nothing to predict: check the targets.")
    return Examples(
        name,
        inputs,
        targets,
        classes=targets.shape[1] if regression else classes or 0,
        task="regression" if regression else "classification",
        scale=1 / 255 if inputs.dtype == torch.uint8 else 1.0,
        groups={"client": owners},
        sides=None if "all" in parts else Official(np.array(parts, dtype=object)),
    )


def examples_of_federation(name: str, federation: Federation) -> Examples:
    """A federation as examples whose split is its own."""
    clients: dict[str, dict[str, Arrays]] = {
        client: {part: _as_stored(federation.split(part), i) for part in SPLITS}
        for i, client in enumerate(federation.names)
    }
    found = examples_of_clients(name, clients, federation.classes)
    assert found.sides is not None
    sides = Official(found.sides.parts, complete=True)
    blocks, order = (_by_row(federation, what) for what in ("blocks", "order"))
    facts = {key: federation.source[key] for key in FACTS if key in federation.source}
    found = replace(found, target_normal=federation.train.target_normal, blocks=blocks, order=order, facts=facts)
    if federation.train.weights is not None:
        split = [federation.split(part).select([i]).weights for i in range(federation.k) for part in SPLITS]
        found = replace(found, weights=torch.cat([own for own in split if own is not None]).numpy())
    return found.with_sides(sides)


def _as_stored(data: ClientData, client: int) -> Arrays:
    """The inputs of a client as they are used, and its targets in the unit that they came in."""
    inputs, _ = data.client(client)
    rows = data.rows(torch.arange(int(data.offsets[client]), int(data.offsets[client + 1])))
    return Arrays(inputs, data.targets[rows])


def _by_row(federation: Federation, what: str) -> list[int] | None:
    """The ``blocks`` or ``order`` of every example in the order of `examples_of_clients`; None without any."""
    if any(getattr(federation.split(part), what) is None for part in SPLITS):
        return None
    found: list[int] = []
    for client in range(federation.k):
        for part in SPLITS:
            data = federation.split(part)
            positions = torch.arange(int(data.offsets[client]), int(data.offsets[client + 1]))
            found += getattr(data, what)[data.rows(positions)].tolist()
    return found


def _check_alike(data: Arrays, first: Arrays, client: str, other: str) -> None:
    for what, mine, its in (("inputs", data.inputs, first.inputs), ("targets", data.targets, first.targets)):
        if mine.shape[1:] != its.shape[1:] or mine.dtype != its.dtype:
            kinds = [f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape[1:])}" for values in (mine, its)]
            raise CoterieError(
                f"Client {client!r} has {what} of the kind {kinds[0]}, but client {other!r} of {kinds[1]}: bring "
                "them to one."
            )
