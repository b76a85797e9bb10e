"""Distances and cosines between the clients' models, safe for models that are almost equal.

The Gram identity ``|x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>`` is one matrix product, but cancels badly when the
models lie close together and far from zero. Moving the origin to one of them, in float64, removes that for
one group of models. Where many pairs are still close compared with their distance from there (the group is
another one, or that one model lies far off), the origin moves into their midst, for them. The last few are
measured again from their difference, so that equal models have the distance 0 exactly.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

CHUNK, NARROWEST = 1 << 18, 256
"""Entries converted to float64 at a time (2 MiB, which a core's cache holds) and the fewest columns."""

CLOSE = 1e-6
"""A pair whose squared distance is below this share of its squared norms is measured once more, from nearby."""

MANY = 2
"""Close pairs that are measured one by one, for each row of the two stacks: 4 K of the pairs among K models."""


def squared_distances(blocks: Tensor | Iterable[Tensor]) -> Tensor:
    """Squared Euclidean distances between all pairs of rows, summed over blocks in float64.

    Args:
        blocks: one ``(K, ...)`` tensor, or several, such as the tensors of stacked models; axes behind the
            first are flattened.

    Returns:
        ``(K, K)`` float64 on the CPU, symmetric, with a zero diagonal; equal rows have distance exactly zero. A row
        with an entry that is not finite has NaN distances to all other rows, and spoils no other pair.

    Raises:
        ValueError: no block is given, or the blocks differ in their number of rows.
    """
    matrices = _matrices(blocks)
    rows = matrices[0].shape[0]
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=matrices[0].device)
    for part in _chunks(matrices, rows):
        centred = _centred(part)
        gram += centred @ centred.T
    norms = gram.diagonal()
    both = norms[:, None] + norms[None, :]
    distances = _known(both - 2 * gram)
    _measure_close(distances, torch.triu(_close(distances, both), diagonal=1), matrices, matrices)
    distances = torch.triu(distances, diagonal=1)
    return (distances + distances.T).cpu()


def cross_distances(blocks: Tensor | Iterable[Tensor], others: Tensor | Iterable[Tensor]) -> Tensor:
    """Squared Euclidean distances between the rows of two stacks, summed over blocks in float64.

    Args:
        blocks: one ``(K, ...)`` tensor, or several, as for :func:`squared_distances`.
        others: the same blocks of another stack, ``(L, ...)``.

    Returns:
        ``(K, L)`` float64 on the CPU; equal rows have distance exactly zero. A row that is not finite has NaN
        distances.

    Raises:
        ValueError: the two stacks differ in their blocks.
    """
    first, second = _matrices(blocks), _matrices(others)
    if [matrix.shape[1] for matrix in first] != [matrix.shape[1] for matrix in second]:
        raise ValueError("distances need two stacks of the same shapes")
    distances, both = _by_products(first, second)
    _measure_close(distances, _close(distances, both), first, second)
    return distances.clamp(min=0.0).cpu()


def cosines(blocks: Tensor | Iterable[Tensor]) -> Tensor:
    """Cosines of the angles between all pairs of rows, summed over blocks in float64.

    Args:
        blocks: as for :func:`squared_distances`.

    Returns:
        ``(K, K)`` float64 on the CPU, in [-1, 1], symmetric, one on the diagonal. A row of zeros has no direction: its
        cosines are 0, its diagonal entry included. A row that is not finite gives NaN in its row and column
        only.

    Raises:
        ValueError: no block is given, or the blocks differ in their number of rows.
    """
    matrices = _matrices(blocks)
    rows = matrices[0].shape[0]
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=matrices[0].device)
    for part in _chunks(matrices, rows):
        gram += part @ part.T
    norms = gram.diagonal().sqrt()
    divisor = torch.where(norms == 0, torch.ones_like(norms), norms)
    cos = (gram / divisor[:, None] / divisor[None, :]).clamp(-1.0, 1.0)
    cos = (cos + cos.T) / 2
    cos.diagonal().copy_((norms > 0).to(torch.float64))
    unknown = ~torch.isfinite(norms)
    cos[unknown] = torch.nan
    cos[:, unknown] = torch.nan
    return cos.cpu()


def median_distance(sq_distances: Tensor) -> float:
    """Median over pairs of the positive, finite squared distances: a natural unit of a kernel width.

    Args:
        sq_distances: ``(K, K)`` symmetric squared distances.

    Returns:
        The median (the mean of the two middle values for an even count), or 1.0 when no pair is apart.
    """
    rows = sq_distances.shape[0]
    upper = torch.ones(rows, rows, dtype=torch.bool, device=sq_distances.device).triu(diagonal=1)
    values = sq_distances[upper & torch.isfinite(sq_distances) & (sq_distances > 0)].to(torch.float64)
    count = values.numel()
    if count == 0:
        return 1.0
    ordered = values.sort().values
    return float((ordered[(count - 1) // 2] + ordered[count // 2]) / 2)


def _matrices(blocks: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return the blocks as ``(K, d_i)`` matrices (views where possible)."""
    tensors = [blocks] if isinstance(blocks, Tensor) else list(blocks)
    if not tensors:
        raise ValueError("distances need at least one block of parameters")
    rows = {tensor.shape[0] for tensor in tensors}
    if len(rows) != 1:
        raise ValueError(f"blocks must have the same number of rows, got {sorted(rows)}")
    return [tensor.detach().reshape(tensor.shape[0], tensor.shape[1:].numel()) for tensor in tensors]


def _chunks(matrices: list[Tensor], rows: int, taken: Tensor | None = None) -> Iterator[Tensor]:
    """Yield float64 column slices, of the rows ``taken`` or of all, of at most ``CHUNK`` entries in ``rows`` rows."""
    width = max(NARROWEST, CHUNK // max(1, rows))
    for matrix in matrices:
        for start in range(0, matrix.shape[1], width):
            part = matrix[:, start : start + width]
            yield (part if taken is None else part[taken]).to(torch.float64)


def _centred(part: Tensor) -> Tensor:
    """Subtract the first finite row: as good a centre as the mean, and equal rows become exactly zero."""
    if bool(torch.isfinite(part.sum())):  # a sum that is finite has finite terms: one pass
        return part - part[:1]
    finite = torch.isfinite(part).all(dim=1)
    if not bool(finite.any()):
        return part
    return part - part[finite][:1]


def _known(distances: Tensor) -> Tensor:
    """The same, in place, with NaN for what is not finite."""
    distances[~torch.isfinite(distances)] = torch.nan
    return distances


def _close(distances: Tensor, both: Tensor) -> Tensor:
    """Pairs whose distances say little beside ``both`` squared norms; where these are zero, the models are equal."""
    return (distances <= CLOSE * both) & (both > 0)


def _by_products(
    first: list[Tensor], second: list[Tensor], rows: Tensor | None = None, columns: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Squared distances ``(K, L)`` between (chosen) rows of two stacks about the first finite one, and both norms."""
    K, L = (len(stack[0]) if taken is None else len(taken) for stack, taken in ((first, rows), (second, columns)))
    norms = torch.zeros(K + L, dtype=torch.float64, device=first[0].device)
    products = torch.zeros(K, L, dtype=torch.float64, device=first[0].device)
    for one, other in zip(_chunks(first, K + L, rows), _chunks(second, K + L, columns), strict=True):
        centred = _centred(torch.cat([one, other]))
        norms += centred.square().sum(dim=1)
        products += centred[:K] @ centred[K:].T
    both = norms[:K, None] + norms[None, K:]
    return _known(both - 2 * products), both


def _measure_close(distances: Tensor, close: Tensor, first: list[Tensor], second: list[Tensor]) -> None:
    """Measure the pairs ``close: (K, L)`` once more and write what comes out into ``distances``, in place.

    While they are many, the row with the most partners becomes the origin for its partners and for all that are close
    to these, which settles its own pairs at least.
    """
    while int(close.sum()) > MANY * sum(close.shape):
        centre = close.sum(dim=1).argmax()
        columns = close[centre].nonzero().flatten()
        rows = close[:, columns].any(dim=1).nonzero().flatten()
        nearby, both = _by_products(first, second, torch.cat([centre.view(1), rows]), columns)
        settled = close[rows][:, columns] & ~_close(nearby, both)[1:]
        at, to = settled.nonzero(as_tuple=True)
        distances[rows[at], columns[to]] = nearby[1:][at, to]
        close[rows[at], columns[to]] = False
    at, to = close.nonzero(as_tuple=True)
    distances[at, to] = _pair_distances(first, second, at, to)


def _pair_distances(first: list[Tensor], second: list[Tensor], at: Tensor, to: Tensor) -> Tensor:
    """Squared distances ``(m,)`` of the row pairs (at[i], to[i]) from their float64 differences."""
    total = torch.zeros(at.numel(), dtype=torch.float64, device=at.device)
    for matrix, other in zip(first, second, strict=True):
        pairs = max(1, CHUNK // max(1, matrix.shape[1]))
        for start in range(0, at.numel(), pairs):
            here = slice(start, start + pairs)
            difference = matrix[at[here]].to(torch.float64) - other[to[here]].to(torch.float64)
            total[here] += difference.square().sum(dim=1)
    return total
