"""Distances and cosines between the clients' models, safe for models that are almost equal.

The Gram identity ``|x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>`` is one matrix product, but cancels badly when the
models lie close together and far from zero. Moving the origin to one of them, in float64, removes that for
one group of models. Pairs that are still close compared with the spread of all models (two tight, distant
groups) are measured again from their difference, so that equal models have the distance 0 exactly.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

CHUNK, NARROWEST = 1 << 18, 256
"""Entries converted to float64 at a time (2 MiB, which a core's cache holds) and the fewest columns."""

CLOSE = 1e-6
"""A pair whose squared distance is below this share of its squared norms is measured from its difference."""


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
    distances = both - 2 * gram
    distances[~torch.isfinite(distances)] = torch.nan
    # Where both norms are zero, all models are equal and there is nothing to measure again.
    close = torch.triu((distances <= CLOSE * both) & (both > 0), diagonal=1)
    first, second = torch.nonzero(close, as_tuple=True)
    exact = _pair_distances(matrices, first, second)
    distances = torch.triu(distances, diagonal=1)
    distances[first, second] = exact
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
    K, L = first[0].shape[0], second[0].shape[0]
    norms = torch.zeros(K + L, dtype=torch.float64, device=first[0].device)
    products = torch.zeros(K, L, dtype=torch.float64, device=first[0].device)
    for one, other in zip(_chunks(first, K + L), _chunks(second, K + L), strict=True):
        centred = _centred(torch.cat([one, other]))
        norms += centred.square().sum(dim=1)
        products += centred[:K] @ centred[K:].T
    both = norms[:K, None] + norms[None, K:]
    distances = both - 2 * products
    distances[~torch.isfinite(distances)] = torch.nan
    rows, columns = torch.nonzero((distances <= CLOSE * both) & (both > 0), as_tuple=True)
    distances[rows, columns] = _pair_distances(first, rows, columns, second)
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


def _chunks(matrices: list[Tensor], rows: int) -> Iterator[Tensor]:
    """Yield float64 column slices of at most ``CHUNK`` entries."""
    width = max(NARROWEST, CHUNK // max(1, rows))
    for matrix in matrices:
        for start in range(0, matrix.shape[1], width):
            yield matrix[:, start : start + width].to(torch.float64)


def _centred(part: Tensor) -> Tensor:
    """Subtract the first finite row: as good a centre as the mean, and equal rows become exactly zero."""
    if bool(torch.isfinite(part.sum())):  # a sum that is finite has finite terms: one pass
        return part - part[:1]
    finite = torch.isfinite(part).all(dim=1)
    if not bool(finite.any()):
        return part
    return part - part[finite][:1]


def _pair_distances(
    matrices: list[Tensor], first: Tensor, second: Tensor, others: list[Tensor] | None = None
) -> Tensor:
    """Squared distances ``(m,)`` of the row pairs (first[i], second[i]) from their float64 differences."""
    total = torch.zeros(first.numel(), dtype=torch.float64, device=first.device)
    for matrix, other in zip(matrices, others or matrices, strict=True):
        pairs = max(1, CHUNK // max(1, matrix.shape[1]))
        for start in range(0, first.numel(), pairs):
            here = slice(start, start + pairs)
            difference = matrix[first[here]].to(torch.float64) - other[second[here]].to(torch.float64)
            total[here] += difference.square().sum(dim=1)
    return total
