"""Who takes part and with what data."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.preparation import Preparation

if TYPE_CHECKING:
    import pandas as pd

FACTS = ("schema", "schemas", "class_names")
"""Of ``source``: how columns became inputs, and what classes are called."""

Task = Literal["classification", "regression"]
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
AT_ONCE = 65536  # examples that are looked through together: torch makes copies of what it looks through


@dataclass(frozen=True, eq=False)
class Federation:
    """K clients by name, each with training, validation and test data.

    Attributes:
        names: unique client names, in row order.
        train, validation, test: the three splits, each of K clients. A client may lack validation data only.
        task: ``classification`` or ``regression``.
        classes: number of classes; for regression the number of targets.
        source: where the data came from (source, its options, rule, seed, checksum); plain JSON values. Where the
            rule has columns of one value a client, such as the angle of rotation, its entry ``clients`` holds them.
            Where a table became inputs, ``schema`` says how or, where each client has its own, ``schemas`` by name.
        preparation: what crossed the wire for that; ``None`` where nothing did.

    Raises:
        CoterieError: names repeat, the splits are for different numbers of clients, or training and validation do not
            both have blocks, or an order.
    """

    names: tuple[str, ...]
    train: ClientData
    validation: ClientData
    test: ClientData
    task: Task
    classes: int
    source: Mapping[str, Any] = field(default_factory=dict)
    preparation: Preparation | None = None

    def __post_init__(self) -> None:
        name, often = Counter(self.names).most_common(1)[0] if self.names else ("", 0)
        if often > 1:
            raise CoterieError(f"Client name {name!r} is given {often} times: client names must be unique.")
        for split in SPLITS:
            k = self.split(split).k
            if k != len(self.names):
                raise CoterieError(f"The {split} split has {k} clients but there are {len(self.names)} client names.")
        for what in ("blocks", "order"):
            if (getattr(self.train, what) is None) != (getattr(self.validation, what) is None):
                raise CoterieError(f"Either training or validation data have {what}: give both, or neither.")

    @classmethod
    def from_arrays(
        cls,
        clients: Any,
        *,
        validation: int | float = 0.2,
        test: int | float = 0.2,
        seed: int = 0,
        blocks: Mapping[Any, Sequence[int | str]] | Sequence[Sequence[int | str]] | None = None,
        order: Mapping[Any, Sequence[Any]] | Sequence[Sequence[Any]] | None = None,
        weights: Mapping[Any, Sequence[float]] | Sequence[Sequence[float]] | None = None,
    ) -> Federation:
        """A federation of arrays or tensors.

        Args:
            clients: ``{name: (inputs, targets)}``, or with a split of one's own ``{name: {"train": (inputs, targets),
                "test": ..., "validation": ...}}``; a list of such has the clients 0, 1, ...
            validation, test: numbers or fractions of a client's examples, drawn by ``seed``, class by class in like
                proportion, where there are no such parts; beside a part ``validation`` none but the default is taken.
            seed: equal seeds give equal splits.
            blocks: by client, which examples belong together, ``(n,)`` numbers or texts: they go to one split.
            order: by client, when its examples were taken: the earliest are for training, the latest for the test.
            weights: by client, how much its examples count in losses and metrics, ``(n,)`` numbers of at least 0.

        Of clients that come in parts, blocks, order and weights are those of one part after the other, as ``clients``
        has them. Where ``clients`` is a list, they may be lists as well.

        Raises:
            CoterieError: data of a client that do not fit together or are too few; the message names it.
        """
        from coterie.federation.own import of_arrays

        return of_arrays(clients, validation, test, seed, blocks, order, weights)

    @classmethod
    def from_datasets(
        cls, clients: Any, *, validation: int | float = 0.2, test: int | float = 0.2, seed: int = 0
    ) -> Federation:
        """A federation of torch Datasets whose examples are pairs of input and target; else as `from_arrays`.

        Raises:
            CoterieError: a Dataset is empty, or its examples are no pairs of tensors, arrays or numbers of one shape;
                the message names the client.
        """
        from coterie.federation.own import of_datasets

        return of_datasets(clients, validation, test, seed)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        client: str,
        validation: int | float = 0.2,
        test: int | float = 0.2,
        seed: int = 0,
        **options: Any,
    ) -> Federation:
        """A federation of the rows of a data frame.

        Args:
            frame: a row an example.
            client: column that says whose a row is.
            validation, test, seed: as of `from_arrays`.
            options: those of the source ``table``, at least ``target``.

        Raises:
            CoterieError: a wrong option or column.
        """
        from coterie.federation.own import of_frame

        return of_frame(frame, client, validation, test, seed, options)

    @property
    def k(self) -> int:
        """Number of clients K."""
        return len(self.names)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.train.feature_shape

    @property
    def columns(self) -> Mapping[str, Sequence[Any]]:
        """Facts about the clients, one value each, by name."""
        found = self.source.get("clients")
        return found if isinstance(found, Mapping) else {}  # else it is the option of a source

    def split(self, name: Split) -> ClientData:
        """The split of that name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    @property
    def digest(self) -> str:
        """SHA-256 of names, task and every client's examples in their order, wherever they lie in memory."""
        sha = hashlib.sha256(repr((self.names, self.task, self.classes)).encode())
        for split in SPLITS:
            data = self.split(split)
            sha.update(repr((data.n.tolist(), data.feature_shape, data.inputs.dtype, data.scale)).encode())
            for normal in (data.normal, data.target_normal):
                for statistic in () if normal is None else (normal.mean, normal.std):
                    sha.update(statistic.cpu().numpy().tobytes())
            for rows in torch.split(data.rows(_positions(data)), AT_ONCE):
                sha.update(data.inputs[rows].cpu().contiguous().numpy().data)
                sha.update(data.targets[rows].cpu().contiguous().numpy().data)
                for known in (data.blocks, data.order):
                    if known is not None:
                        sha.update(known[rows].cpu().contiguous().numpy().data)
            if data.weights is not None:
                sha.update(data.weights[_positions(data)].cpu().contiguous().numpy().data)
        return sha.hexdigest()

    def select(self, clients: Sequence[int]) -> Federation:
        """The same federation for these clients only, in this order; inputs are shared, not copied."""
        chosen = [int(c) for c in clients]
        source = dict(self.source)
        if self.columns:
            source["clients"] = {key: [column[c] for c in chosen] for key, column in self.columns.items()}
        if "schemas" in source:
            source["schemas"] = {self.names[c]: source["schemas"][self.names[c]] for c in chosen}
        return replace(
            self,
            names=tuple(self.names[c] for c in chosen),
            train=self.train.select(chosen),
            validation=self.validation.select(chosen),
            test=self.test.select(chosen),
            source=source,
            preparation=None if self.preparation is None else self.preparation.select(chosen),
        )

    def to(self, device: torch.device | str) -> Federation:
        """The same federation with its data on ``device``."""
        return replace(
            self,
            train=self.train.to(device),
            validation=self.validation.to(device),
            test=self.test.to(device),
        )

    def class_counts(self, split: Split = "train") -> Tensor:
        """How many examples of each class each client has, ``(K, C)`` int64.

        Raises:
            CoterieError: the task is regression, which has no classes.
        """
        if self.task != "classification":
            raise CoterieError("A regression federation has no classes to count.")
        data = self.split(split)
        cells = data.owners() * self.classes + data.targets[data.rows(_positions(data))]
        return torch.bincount(cells, minlength=self.k * self.classes).view(self.k, self.classes)

    def validate(self) -> Federation:
        """Check every value and return the federation itself.

        Raises:
            CoterieError: names the client with an empty training or test split, with NaN or infinity in
                inputs or targets, or with a label outside the classes.
        """
        if self.k == 0:
            raise CoterieError("The federation has no client: ask for at least one.")
        finite = cache(_finite)  # splits that share their tensors are looked through once
        for split in SPLITS:
            data = self.split(split)
            if data.index is not None and len(data.index) and not _within(data.index, len(data.inputs)):
                raise CoterieError(f"The {split} index names rows outside the {len(data.inputs)} that there are.")
            if split != "validation" and bool((data.n == 0).any()):
                name = self.names[int((data.n == 0).nonzero()[0])]
                raise CoterieError(
                    f"Client {name!r} has no {split} data: give every client at least one {split} example "
                    "or leave it out."
                )
            if (bad := self._first(split, ~finite(data.inputs))) is not None:
                raise CoterieError(
                    f"Client {bad[0]!r} has NaN or infinity in its {split} inputs: clean or remove them."
                )
            if (bad := self._first(split, ~finite(data.targets))) is not None:
                raise CoterieError(
                    f"Client {bad[0]!r} has NaN or infinity in its {split} targets: clean or remove them."
                )
            if self.task == "classification" and data.targets.dtype == torch.int64:
                bad = self._first(split, (data.targets < 0) | (data.targets >= self.classes))
                if bad is not None:
                    raise CoterieError(
                        f"Client {bad[0]!r} has the label {int(data.targets[bad[1]])} in its {split} data, "
                        f"outside the classes 0 .. {self.classes - 1}: correct the label or the number of "
                        "classes."
                    )
        for split in SPLITS:
            self._check_shapes(split)
            self._check_weights(split)
        return self

    def _check_weights(self, split: Split) -> None:
        """Weights, where there are such, are numbers, and something of every client counts."""
        data = self.split(split)
        if data.weights is None:
            return
        weights = data.weights[_positions(data)]
        if len(bad := (~(weights >= 0) | weights.isinf()).nonzero()):
            name = self.names[int(data.owners()[bad[0]])]
            raise CoterieError(
                f"Client {name!r} has a weight in its {split} data that is negative or not finite: correct it."
            )
        if len(none := ((data.n > 0) & (data.sizes == 0)).nonzero()):
            raise CoterieError(
                f"Client {self.names[int(none[0])]!r} has no {split} example with a weight above 0: give one a weight, "
                "choose another split, or leave the client out."
            )

    def _check_shapes(self, split: Split) -> None:
        """Inputs as in training, and targets as the task has them."""
        data = self.split(split)
        if data.feature_shape != self.feature_shape:
            raise CoterieError(
                f"The {split} inputs have the shape {data.feature_shape} but the train inputs {self.feature_shape}: "
                "bring them to one shape."
            )
        if self.task == "classification" and data.targets.is_floating_point():
            raise CoterieError("Classification needs int64 class labels, but the targets are floating point.")
        wanted = () if self.task == "classification" else (self.classes,)
        if tuple(data.targets.shape[1:]) != wanted:
            shape = f"(N, {self.classes})" if wanted else "(N,)"
            raise CoterieError(
                f"The {split} targets have the shape {tuple(data.targets.shape)}, but {shape} is expected."
            )

    def _first(self, split: Split, bad_rows: Tensor) -> tuple[str, int] | None:
        """The first client that owns a bad row, and that row; bad rows without an owner do no harm."""
        if not bool(bad_rows.any()):
            return None
        data = self.split(split)
        rows = data.rows(_positions(data))
        hits = bad_rows[rows].nonzero()
        if len(hits) == 0:
            return None
        return self.names[int(data.owners()[hits[0]])], int(rows[hits[0]])


def client_names(clients: int) -> tuple[str, ...]:
    """Names such as ``client-07``, zero-padded so that their alphabetical order is their row order."""
    width = max(2, len(str(clients - 1)))
    return tuple(f"client-{i:0{width}d}" for i in range(clients))


def _positions(data: ClientData) -> Tensor:
    return torch.arange(int(data.offsets[0]), int(data.offsets[-1]), device=data.offsets.device)


def _within(index: Tensor, rows: int) -> bool:
    return int(index.min()) >= 0 and int(index.max()) < rows


def _finite(values: Tensor) -> Tensor:
    """Which rows hold finite values only, ``(N,)`` bool."""
    if not values.is_floating_point():
        return torch.ones(len(values), dtype=torch.bool, device=values.device)
    rows = values if values.dim() > 1 else values.unsqueeze(1)
    parts = [rows[start : start + AT_ONCE] for start in range(0, max(1, len(rows)), AT_ONCE)]
    return torch.cat([torch.isfinite(part).flatten(1).all(1) for part in parts])
