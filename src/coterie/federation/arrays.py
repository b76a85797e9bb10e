"""A federation from arrays in memory, one pair a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.federation.build import divided
from coterie.federation.datasets.memory import IN_MEMORY
from coterie.federation.examples import Examples
from coterie.federation.federation import Federation, Task
from coterie.federation.partition.natural import Natural


def federation_of(
    clients: Mapping[str, tuple[Any, Any]],
    *,
    task: Task = "classification",
    validation: int | float = 0.2,
    test: int | float = 0.2,
    seed: int = 0,
    blocks: Mapping[str, Sequence[int | str]] | None = None,
    order: Mapping[str, Sequence[Any]] | None = None,
) -> Federation:
    """Divide each client's examples into training, validation and test, as the rule ``natural`` does.

    Args:
        clients: by name, inputs ``(n_i, *feature_shape)``, numbers or uint8, and targets: ``(n_i,)`` whole numbers from
            0 for classification, ``(n_i,)`` or ``(n_i, t)`` for regression; arrays, tensors, frames or lists.
        task: ``classification`` or ``regression``.
        validation, test: a number of examples of each client, or a fraction.
        seed: seed of the division.
        blocks: by client, which examples belong together (``(n_i,)`` numbers or texts): they go to one split.
        order: by client, when examples were taken: the earliest are for training, the latest for the test.

    Raises:
        CoterieError: no client, arrays that do not fit together, or a client with too few examples; it is named.
    """
    for word, size in (("validation", validation), ("test", test)):
        if size < 0 or (isinstance(size, float) and size >= 1):
            raise CoterieError(f"federation_of: {word} is a number of examples or a fraction below 1, not {size}.")
    if not clients:
        raise CoterieError("There is no client: give at least one, by name.")
    names = list(clients)
    inputs = [_inputs(clients[name][0], name) for name in names]
    targets = [_targets(clients[name][1], name, task) for name in names]
    for name, x, y in zip(names, inputs, targets, strict=True):
        if len(x) != len(y):
            raise CoterieError(f"Client {name!r} has {len(x)} inputs but {len(y)} targets: give one target an input.")
        if (x.shape[1:], x.dtype, y.shape[1:]) != (inputs[0].shape[1:], inputs[0].dtype, targets[0].shape[1:]):
            raise CoterieError(
                f"Client {name!r} has inputs {tuple(x.shape[1:])} {x.dtype} and targets {tuple(y.shape[1:])}, but "
                f"{names[0]!r} has {tuple(inputs[0].shape[1:])} {inputs[0].dtype} and {tuple(targets[0].shape[1:])}: "
                "bring all clients to one form."
            )
    joined = torch.cat(targets)
    examples = Examples(
        IN_MEMORY,
        torch.cat(inputs),
        joined,
        classes=int(joined.max()) + 1 if task == "classification" else joined.shape[1],
        task=task,
        scale=1 / 255 if inputs[0].dtype == torch.uint8 and inputs[0].dim() == 4 else 1.0,
        groups={"client": [name for name, x in zip(names, inputs, strict=True) for _ in range(len(x))]},
        blocks=_joined(blocks, names, "blocks"),
        order=_joined(order, names, "order"),
    )
    rule = Natural(min_examples=1)
    try:
        sizes = rule.resolve({"train": None, "validation": validation, "test": test})
    except ValueError as error:
        raise CoterieError(f"federation_of: {error}.") from error
    return divided(examples, rule, sizes, seed, {"source": IN_MEMORY})


def _inputs(values: Any, name: str) -> Tensor:
    array = _array(values, name, "inputs")
    return torch.from_numpy(array if array.dtype == np.uint8 else array.astype(np.float32))


def _targets(values: Any, name: str, task: Task) -> Tensor:
    array = _array(values, name, "targets")
    if task == "regression":
        return torch.from_numpy(array.astype(np.float32)).reshape(len(array), -1)
    if array.ndim != 1 or not np.array_equal(array, array.astype(np.int64)) or array.min(initial=0) < 0:
        raise CoterieError(f"Client {name!r}: targets must be whole numbers from 0, one an input; encode them first.")
    return torch.from_numpy(array.astype(np.int64))


def _array(values: Any, name: str, what: str) -> np.ndarray[Any, Any]:
    array = np.ascontiguousarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    if array.dtype.kind not in "biuf":
        raise CoterieError(f"Client {name!r}: {what} hold {array.dtype} where numbers are expected; encode them first.")
    return array


def _joined(of: Mapping[str, Sequence[Any]] | None, names: Sequence[str], what: str) -> list[Any] | None:
    if of is None:
        return None
    if missing := [name for name in names if name not in of]:
        raise CoterieError(f"{what} lack the client {missing[0]!r}: give them for all clients or for none.")
    return [one for name in names for one in of[name]]
