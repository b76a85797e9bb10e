"""All models of a federation as one matrix Theta, K x d: row k is client k's model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, overload
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from coterie.models.mixing import Mixing, as_weights

Buffers = Literal["average", "local", "server"]
NOTHING = ""  # the one parameter, of size 0, of a part that has none
PIECE, WIDTH = 1 << 16, 1 << 14
"""Numbers that a thread converts to float64 at a time (half a MiB, for its cache), and of one row among them."""
Rows = int | slice | Sequence[int] | Tensor


@dataclass(frozen=True)
class Layout:
    """How a module's tensors lie in a row of Theta.

    ``parameters`` and ``buffers`` are names in the module's own order, ``shapes`` their shapes in one model,
    ``head`` the names of the parameters of the head, and ``policy`` says what happens to floating-point
    buffers. ``frozen`` are the parameters without ``requires_grad``, which no training moves.
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    shapes: Mapping[str, torch.Size]
    head: frozenset[str]
    policy: Buffers = "average"
    frozen: frozenset[str] = frozenset()

    @property
    def d(self) -> int:
        """Number of parameters of one model."""
        return sum(self.shapes[name].numel() for name in self.parameters)

    @property
    def layers(self) -> tuple[str, ...]:
        """The modules that hold parameters, in the module's own order."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.parameters))

    def part(self, part: str) -> tuple[str, ...]:
        """Names of the parameters of ``"head"`` or ``"body"``, of the ``"last 2"`` layers or those ``"before last 2"``.

        ``"all"`` are all. Raises ``KeyError`` for any other word.
        """
        if part == "all":
            return self.parameters
        if part in ("head", "body"):
            return tuple(name for name in self.parameters if (name in self.head) == (part == "head"))
        number = part.removeprefix("before ").removeprefix("last ")
        if not number.isdigit() or part not in (f"last {number}", f"before last {number}"):
            raise KeyError(f"a model has the parts head, body, last N, before last N and all, not {part!r}")
        count = len(self.layers)
        last = self.layers[max(0, count - int(number)) :]
        return tuple(n for n in self.parameters if (n.rpartition(".")[0] in last) == (part == f"last {number}"))

    def trained(self, part: str = "all") -> tuple[str, ...]:
        """Names of the parameters of a part that training moves: those that are not frozen."""
        return tuple(name for name in self.part(part) if name not in self.frozen)

    def part_buffers(self, part: str) -> tuple[str, ...]:
        """Names of the buffers of a part: those of layers that are wholly in it; all others precede the head."""
        if part == "all":
            return self.buffers
        lower = part == "body" or part.startswith("before")
        upper = self.part({"body": "head"}.get(part, part.removeprefix("before ")))
        below = {name.rpartition(".")[0] for name in self.parameters if name not in upper}
        owners = {name.rpartition(".")[0] for name in upper} - below
        return tuple(name for name in self.buffers if (name.rpartition(".")[0] in owners) != lower)


class Models:
    """A stack of models that behaves as a matrix with one row a model.

    Every tensor has the client axis first: ``tensors[name]: (k, *shape)``; methods with several candidate
    models per client use two leading axes ``(k, c)``. Arithmetic, norms and distances concern parameters;
    floating-point buffers follow the policy of the layout. Rows that are all one common row are stored once.
    """

    __slots__ = ("__weakref__", "_borrowed", "_lent", "layout", "owned", "tensors")
    __array_ufunc__ = None  # a numpy number on the left leaves the operator to us

    def __init__(self, layout: Layout, tensors: Mapping[str, Tensor]) -> None:
        self.layout = layout
        self.tensors = dict(tensors)
        self.owned = False  # some state holds this very storage
        self._borrowed = False  # our storage is that of the models from which these rows were taken
        self._lent: list[ReferenceType[Models]] = []  # rows or parts taken from us that share our storage

    # --- shape ----------------------------------------------------------------------------------------------
    @property
    def lead(self) -> torch.Size:
        """The leading axes: ``(k,)``, or ``(k, c)`` with candidates."""
        name, tensor = next(iter(self.tensors.items()))
        return tensor.shape[: tensor.ndim - len(self.layout.shapes[name])]

    def __len__(self) -> int:
        return self.lead[0]

    @property
    def d(self) -> int:
        """Parameters in one row."""
        return self.layout.d

    @property
    def common(self) -> bool:
        """Whether all rows are one row that is stored once (a single row counts)."""
        return len(self) == 1 or all(tensor.stride(0) == 0 for tensor in self.tensors.values())

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""
        return next(iter(self.tensors.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters."""
        return self.tensors[self.layout.parameters[0]].dtype

    def bytes_per_row(self) -> tuple[int, int]:
        """Bytes of one row's parameters and of one row's buffers."""
        sizes = {n: self.layout.shapes[n].numel() * t.element_size() for n, t in self.tensors.items()}
        return (
            sum(sizes[n] for n in self.layout.parameters),
            sum(sizes[n] for n in self.layout.buffers),
        )

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor ``(k, *shape)`` of every parameter."""
        return ((name, self.tensors[name]) for name in self.layout.parameters)

    def trained(self) -> list[Tensor]:
        """The tensors ``(k, *shape)`` of all parameters that training moves."""
        return [self.tensors[name] for name in self.layout.trained()]

    # --- rows and parts -------------------------------------------------------------------------------------
    @overload
    def __getitem__(self, rows: str) -> Models: ...
    @overload
    def __getitem__(self, rows: Rows) -> Models: ...
    def __getitem__(self, rows: str | Rows) -> Models:
        """``theta[rows]``: rows (an int keeps the axis); ``theta["head"]``, ``theta["body"]``: columns.

        Rows taken by number and parts are values of their own, copied only when they or ``theta`` change; a slice is
        seen, not copied: ``clone`` what is kept while rows change.
        """
        if isinstance(rows, str):
            names, buffers = self.layout.part(rows), self.layout.part_buffers(rows)
            shapes = {name: self.layout.shapes[name] for name in (*names, *buffers)}
            tensors = {name: self.tensors[name] for name in shapes}
            if not names:  # a part without parameters still has rows
                first = next(iter(self.tensors.values()))
                names, shapes[NOTHING] = (NOTHING,), torch.Size([0])
                tensors[NOTHING] = first.new_empty(*self.lead, 0, dtype=self.dtype)
            layout = replace(self.layout, parameters=names, buffers=buffers, shapes=shapes)
            return self._lend(Models(layout, tensors))
        index = self._index(rows)
        if self.common and not isinstance(index, slice):  # keep the one stored row shared
            count = len(index)
            return self._lend(self._map(lambda t: t[:1].expand(count, *t.shape[1:])))
        rows_here = self._map(lambda t: t[index])
        if not isinstance(index, slice):
            return rows_here
        return self._seen(rows_here) if isinstance(rows, slice) else self._lend(rows_here)

    def __setitem__(self, rows: str | Rows, values: Models) -> None:
        """Overwrite rows with ``values``, or with a part name that part's columns."""
        self._detach()
        if isinstance(rows, str):
            for name in (*self.layout.part(rows), *self.layout.part_buffers(rows)):
                if name in values.tensors:
                    self.tensors[name] = values.tensors[name].expand(self.tensors[name].shape).clone()
            return
        index = self._index(rows)
        self.materialise()
        for name, tensor in self.tensors.items():
            tensor[index] = values.tensors[name].to(tensor.dtype)

    def repeat(self, count: int) -> Models:
        """The single row of this stack, seen ``count`` times without copying."""
        return self._seen(self._map(lambda t: t[:1].expand(count, *t.shape[1:])))

    def materialise(self) -> None:
        """Give every row its own storage."""
        for name, tensor in self.tensors.items():
            if tensor.shape[0] > 1 and tensor.stride(0) == 0:
                self.tensors[name] = tensor.contiguous()

    def clone(self) -> Models:
        """A copy that shares no storage; a common row stays stored once."""
        return self._each(torch.clone)

    def flatten_candidates(self) -> Models:
        """``(k, c)`` candidates as ``k * c`` rows."""
        lead = len(self.lead)
        return self._seen(self._map(lambda t: t.reshape(-1, *t.shape[lead:])))

    def as_candidates(self) -> Models:
        """``(k,)`` rows as ``(k, 1)`` candidates, seen and not copied; ``(k, c)`` candidates as they are."""
        return self if len(self.lead) == 2 else self._seen(self._map(lambda t: t.unsqueeze(1)))

    def candidate(self, number: int) -> Models:
        """One of the ``(k, c)`` candidates of every row, ``(k,)``."""
        return self._seen(self._map(lambda t: t[:, number]))

    def chosen(self, index: Tensor) -> Models:
        """Of the ``(k, c)`` candidates of each row those that its ``index: (k, m)`` names, ``(k, m)``."""
        rows, columns = torch.arange(len(self), device=self.device).unsqueeze(1), index.to(self.device)
        return self._map(lambda t: t[rows, columns])

    def blended(self, weights: Tensor) -> Models:
        """Of the ``(k, c)`` candidates of each row their sum with its ``weights: (k, c)``, ``(k,)``."""
        weights = torch.as_tensor(weights, device=self.device)
        if all(tensor.stride(0) == 0 for tensor in self.tensors.values()):  # all rows have the same candidates
            return Models(self.layout, {name: tensor[0] for name, tensor in self.tensors.items()}).mixed(weights)
        parts = [self._one(row).mixed(weights[row]) for row in range(len(self))]
        return stack_rows(parts)

    def dots(self, row: Models) -> Tensor:
        """Inner products of each row's ``(k, c)`` candidates with its own ``row: (k,)``, ``(k, c)`` in float64."""
        total = torch.zeros(self.lead, dtype=torch.float64, device=self.device)
        for name, tensor in self.parameters():
            own = row.tensors[name].reshape(len(self), -1, 1).double()
            if tensor.stride(0) == 0:
                total += (tensor[0].reshape(tensor.shape[1], -1).double() @ own.squeeze(-1).T).T
            else:
                total += torch.stack([(_flat(t).double() @ o).squeeze(-1) for t, o in zip(tensor, own, strict=True)])
        return total

    def _one(self, row: int) -> Models:
        """The ``(c,)`` candidates of one row as a stack of their own."""
        return self._seen(self._map(lambda tensor: tensor[row]))

    def with_part(self, part: str, values: Models) -> Models:
        """The same models with another head, body, ...: ``values: (k,)``, or one row for all."""
        joined = self.clone()
        joined[part] = values
        return joined

    def with_buffers(self, other: Models, rows: Tensor) -> Models:
        """The same parameters, with the buffers of ``other: (k,)`` in the ``rows: (k,)`` bool that are true."""
        tensors = dict(self.tensors)
        for name in self.layout.buffers:
            own = self.tensors[name]
            tensors[name] = torch.where(rows.to(own.device).view(-1, *[1] * (own.ndim - 1)), other.tensors[name], own)
        return Models(self.layout, tensors)

    def kept(self, rows: Tensor) -> Models:
        """The same models where ``rows: (k,)`` bool is true, and zeros, parameters and buffers, in all other rows."""
        if bool(rows.all()):
            return self
        rows = rows.to(self.device)
        return self._map(lambda t: t.where(rows.view(-1, *[1] * (t.ndim - 1)), torch.zeros_like(t)))

    def with_frozen(self, other: Models) -> Models:
        """The same models with those parameters of ``other: (k,)`` that no training moves."""
        if not self.layout.frozen:
            return self
        frozen = {name: other.tensors[name].clone() for name in self.layout.frozen}
        return Models(self.layout, {**self.tensors, **frozen})

    def without_buffers(self) -> Models:
        """The parameters alone, as a gradient has them: control variates and momenta have no statistics."""
        layout = replace(self.layout, buffers=())
        return self._lend(Models(layout, {name: self.tensors[name] for name in layout.parameters}))

    def to(self, device: torch.device | str) -> Models:
        """The same models on another device."""
        return self._seen(self._each(lambda t: t.to(device)))

    # --- arithmetic -----------------------------------------------------------------------------------------
    def __add__(self, other: Models | float | Tensor) -> Models:
        return self._combine(other, torch.add)

    def __sub__(self, other: Models | float | Tensor) -> Models:
        return self._combine(other, torch.sub)

    def __mul__(self, other: Models | float | Tensor) -> Models:
        return self._combine(other, torch.mul)

    def __truediv__(self, other: Models | float | Tensor) -> Models:
        return self._combine(other, torch.div)

    def __rmul__(self, other: float | Tensor) -> Models:
        return self._combine(other, torch.mul)

    def __radd__(self, other: float | Tensor) -> Models:
        return self._combine(other, torch.add)

    def __neg__(self) -> Models:
        return self * -1.0

    def towards(self, other: Models, share: Tensor) -> Models:
        """``(1 - share) self + share other`` for ``share: (k,)``, exact where it is 0 or 1; buffers are one's own."""
        result = {}
        for name, tensor in self.parameters():
            column = share.to(tensor).reshape(len(share), *[1] * (tensor.ndim - 1))
            result[name] = torch.lerp(tensor, other.tensors[name], column)
        for name in self.layout.buffers:
            result[name] = self.tensors[name].expand(len(share), *self.layout.shapes[name]).clone()
        return Models(self.layout, {name: result[name] for name in self.tensors})

    def __rmatmul__(self, matrix: Tensor) -> Models:
        """``matrix @ theta`` for a matrix ``(r, k)`` or a vector of weights ``(k,)``, which gives one row."""
        return self.mixed(matrix)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let a torch tensor on the left of an operator find our reflected operators."""
        left, right = (*args, None, None)[:2]
        if isinstance(right, Models) and isinstance(left, Tensor):
            name = getattr(func, "__name__", "")
            if name in ("matmul", "__matmul__", "mm"):
                return right.mixed(left)
            if name in ("mul", "__mul__", "__rmul__", "multiply"):
                return right * left
            if name in ("add", "__add__", "__radd__"):
                return right + left
        return NotImplemented

    def mixed(self, matrix: Tensor | Mixing, out: Models | None = None) -> Models:
        """``matrix @ theta``, tensor by tensor: ``(r, k) @ (k, *shape) -> (r, *shape)``.

        Weights are cast to the models' type after they have been computed in their own. Averaging
        floating-point buffers is meant for rows that sum to 1; integer buffers take the maximum over the
        models with weight. ``out`` receives the result in place where no second stack is affordable.
        """
        weights = as_weights(matrix, self.device)
        if len(weights.shape) != 2 or weights.shape[1] != len(self):
            raise ValueError(f"weights {tuple(matrix.shape)} do not fit {len(self)} models")
        if self.common and len(self) > 1:
            ones = torch.ones(weights.shape[0], 1, device=self.device)
            weights = ones if isinstance(weights, Mixing) else weights.sum(1, keepdim=True)
        result: dict[str, Tensor] = {}
        if out is not None:
            out._detach()
            out.materialise()
        for name, tensor in self.tensors.items():
            source = tensor[: weights.shape[1]]
            target = None if out is None else out.tensors[name]
            if name in self.layout.parameters or (self.layout.policy == "average" and source.is_floating_point()):
                result[name] = _product(weights, source, target)
            else:
                mixed = self._other_buffer(weights, source)
                result[name] = mixed if target is None else target.copy_(mixed)
        return Models(self.layout, result)

    def mixed_with_own(self, own: Models, weights: Tensor) -> Models:
        """Mixtures of these models and, last, of a model of each row's own; ``weights: (r, k + 1)``, ``own: (r,)``.

        As `mixed`, of which it is the special case that each row has one more model to itself.
        """
        taken, share = self.mixed(weights[:, :-1]), weights[:, -1]
        result = taken + own * share
        for name in self.layout.buffers:
            others, itself = taken.tensors[name], own.tensors[name]
            column, alone = (
                each.to(others.device).reshape(-1, *[1] * (others.ndim - 1))
                for each in (share, (weights[:, :-1] == 0).all(dim=1))
            )
            if not others.is_floating_point():
                largest = torch.where(alone, itself, torch.maximum(others, itself))
                result.tensors[name] = torch.where(column != 0, largest, others)
            elif self.layout.policy == "average":
                result.tensors[name] = others + column.to(others.dtype) * itself
        return result

    def _other_buffer(self, weights: Tensor | Mixing, source: Tensor) -> Tensor:
        rows = weights.shape[0]
        if not source.is_floating_point():
            flat = _flat(source)
            if isinstance(weights, Mixing):
                return weights.greatest(flat).reshape(rows, *source.shape[1:])
            lowest = torch.iinfo(source.dtype).min if source.dtype != torch.bool else False
            chosen = weights != 0
            chosen |= ~chosen.any(1, keepdim=True)  # weights of zero only single nobody out
            masked = torch.where(chosen.unsqueeze(-1), flat.unsqueeze(0), lowest)
            return masked.amax(1).reshape(rows, *source.shape[1:])
        if rows == len(source):
            return source.clone()
        return source[:1].expand(rows, *source.shape[1:]).clone()

    def norm(self) -> Tensor:
        """Euclidean norm of each row over its parameters, ``(k,)`` or ``(k, c)`` in float64."""
        return self.dot(self).sqrt()

    def dot(self, other: Models) -> Tensor:
        """Inner products of the rows of two stacks over parameters, ``(k,)`` or ``(k, c)`` in float64."""
        lead, products = len(self.lead), []
        for name, tensor in self.parameters():
            own = _flat(tensor, lead)
            products.append(_row_products(own, own if other is self else _flat(other.tensors[name], lead)))
        return torch.stack(products).sum(0)

    def flat(self) -> Tensor:
        """The parameters as a matrix ``(k, d)``, a copy."""
        return torch.cat([_flat(tensor) for _, tensor in self.parameters()], dim=1)

    def finite(self) -> Tensor:
        """Which rows hold finite numbers only, ``(k,)`` bool."""
        good = torch.ones(len(self), dtype=torch.bool, device=self.device)
        for tensor in self.tensors.values():
            if tensor.is_floating_point():
                good &= finite_rows(tensor)
        return good

    def zeros(self) -> Models:
        """A stack of the same shape filled with zeros, stored once."""
        return self._map(lambda t: torch.zeros_like(t[:1]).expand(t.shape))

    def __repr__(self) -> str:
        return f"Models({tuple(self.lead)} x {self.d}, {self.dtype}{', common row' if self.common else ''})"

    # --- helpers --------------------------------------------------------------------------------------------
    def _each(self, function: Callable[[Tensor], Tensor]) -> Models:
        """``function`` of every row, so that a common row stays stored once."""
        return self[:1]._map(function).repeat(len(self)) if self.common else self._map(function)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Models:
        return Models(self.layout, {name: function(tensor) for name, tensor in self.tensors.items()})

    def _index(self, rows: Rows) -> slice | Tensor:
        if isinstance(rows, slice):
            return rows
        if isinstance(rows, int):
            if not -len(self) <= rows < len(self):  # this also ends a loop over rows
                raise IndexError(f"row {rows} of {len(self)} models")
            return slice(rows, rows + 1) if rows != -1 else slice(-1, None)
        index = torch.as_tensor(rows).reshape(-1)
        index = index.nonzero().flatten() if index.dtype == torch.bool else index.long()
        return contiguous(index) if index.device.type == "cpu" else index

    def _lend(self, rows: Models) -> Models:
        """Rows or a part of ours that share our storage until one side changes."""
        rows._borrowed = True
        self._lent = [lent for lent in self._lent if lent() is not None] + [ref(rows)]
        return self._seen(rows)

    def _detach(self) -> None:
        """Before rows change: those who share our storage, and we where it is another's, get one of their own."""
        sharing = [models for lent in self._lent if (models := lent()) is not None]
        self._lent = []
        for models in [*sharing, *([self] if self._borrowed else [])]:
            copy = models.clone()
            models.tensors, models._borrowed, models.owned = copy.tensors, False, copy.owned

    def _seen(self, view: Models) -> Models:
        """A result that may share our storage: where a state owns it, assigning the result copies."""
        view.owned = self.owned
        return view

    def _combine(self, other: Models | float | Tensor, operator: Callable[..., Tensor]) -> Models:
        if isinstance(other, Models):
            alike = other.common and len(other) == len(self)
        else:
            alike = not isinstance(other, Tensor) or other.ndim == 0
        if alike and self.common and len(self) > 1:  # one common row stays stored once
            right = other[:1] if isinstance(other, Models) else other
            return self[:1]._combine(right, operator).repeat(len(self))
        if isinstance(other, Tensor) and other.ndim > len(self.lead):
            raise ValueError(f"models {tuple(self.lead)} take one number for each, not {tuple(other.shape)}")
        result = {}
        for name, tensor in self.parameters():
            value: Any = other.tensors[name] if isinstance(other, Models) else other
            if isinstance(other, Tensor) and other.ndim:
                column = other.to(tensor.device, tensor.dtype)
                value = column.reshape(*other.shape, *[1] * (tensor.ndim - other.ndim))
            result[name] = operator(tensor, value)
        lead = Models(self.layout, result).lead
        for name in self.layout.buffers:  # one row that met k rows has become k rows
            result[name] = self.tensors[name].expand(*lead, *self.layout.shapes[name]).clone()
        return Models(self.layout, {name: result[name] for name in self.tensors})


def contiguous(rows: Tensor) -> Tensor | slice:
    """The slice that says the same as ``rows: (r,)`` where there is one, so that rows are seen and not copied."""
    if len(rows) and bool((rows == torch.arange(int(rows[0]), int(rows[0]) + len(rows))).all()):
        return slice(int(rows[0]), int(rows[0]) + len(rows))
    return rows


def finite_rows(tensor: Tensor) -> Tensor:
    """Which rows of ``tensor: (k, ...)`` are finite, ``(k,)`` bool; one pass where they are."""
    flat = _flat(tensor)
    good = torch.isfinite(flat.sum(1))
    if not bool(good.all()):  # a sum can overflow although no entry does
        good = torch.isfinite(flat).all(1)
    return good


def stack_rows(parts: Sequence[Models]) -> Models:
    """Stacks below one another; one common row shared by all parts stays stored once."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    first = parts[0]
    if len(parts) == 1:
        return first
    if all(part.common for part in parts) and _same_storage(parts):
        return first.repeat(sum(len(part) for part in parts))
    return Models(first.layout, {n: torch.cat([part.tensors[n] for part in parts]) for n in first.tensors})


def stack_candidates(parts: Sequence[Models]) -> Models:
    """c stacks of k models as ``(k, c)`` candidates."""
    first = parts[0]
    return Models(first.layout, {n: torch.stack([part.tensors[n] for part in parts], dim=1) for n in first.tensors})


def _same_storage(parts: Sequence[Models]) -> bool:
    return all(
        part.tensors[name].data_ptr() == tensor.data_ptr()
        for part in parts[1:]
        for name, tensor in parts[0].tensors.items()
    )


def _flat(tensor: Tensor, lead: int = 1) -> Tensor:
    """``(*lead, *shape) -> (*lead, numbers of one row)``, for scalars and for no rows at all too."""
    return tensor.reshape(*tensor.shape[:lead], prod(tensor.shape[lead:]))


def _row_products(one: Tensor, other: Tensor) -> Tensor:
    """Inner products over the last axis of two tensors ``(*lead, n)``, ``(*lead,)`` in float64, piece by piece.

    Columns are cut in the same places whatever the number of rows, and each row is summed by itself, so that a row's
    product does not depend on those beside it. A row that is common to all is converted once for all of them.
    """
    n = one.shape[-1]
    if n <= WIDTH and max(one.numel(), other.numel()) <= PIECE:
        return (one.double() * other.double()).sum(-1)
    total = (one[..., :0] * other[..., :0]).sum(-1, dtype=torch.float64)  # zeros in the shape of the result
    factors = [each[:1] if each.stride(0) == 0 else each for each in ([one] if one is other else [one, other])]
    at_once = PIECE * (torch.get_num_threads() if total.device.type == "cpu" else 1 << 8)
    height = max(1, at_once * len(total) // max(1, total.numel() * min(n, WIDTH)))
    for left in range(0, n, WIDTH):
        columns = [each[..., left : left + WIDTH] for each in factors]
        columns = [each.double() if len(each) == 1 else each for each in columns]
        for top in range(0, len(total), height):
            parts = [each if len(each) == 1 else each[top : top + height].double() for each in columns]
            total[top : top + height] += (parts[0] * parts[-1]).sum(-1)
    return total


def _product(weights: Tensor | Mixing, source: Tensor, out: Tensor | None) -> Tensor:
    """``weights: (r, k)`` times ``source: (k, *shape)``."""
    flat, rows = _flat(source), weights.shape[0]
    target = None if out is None else out.view(rows, flat.shape[1])
    if isinstance(weights, Mixing):
        product = weights.product(flat, out=target)
    else:
        product = torch.matmul(weights.to(flat.dtype), flat, out=target)
    return product.view(rows, *source.shape[1:])
