"""What a client tells about its data: a low-dimensional subspace, and how similar two subspaces are.

Source: Wu, Bao, Ainsworth, He, "Personalized Federated Learning with Parameter Propagation", KDD 2023
(FEDORA).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.errors import CoterieError

WELL_CONDITIONED = 1e-3
"""Smallest ratio of the p-th to the first singular value for which the Gram matrix is accurate enough.

Squaring the singular values costs digits: at this ratio about six of float64's sixteen.
"""


def joint_matrix(
    inputs: Tensor,
    targets: Tensor | None,
    classes: int,
    label_scale: float = 1.0,
    task: str = "classification",
) -> Tensor:
    """Features and labels of one client as one matrix with examples as columns; nothing is centred.

    Args:
        inputs: ``(n, *feature_shape)`` floating point inputs, flattened to d_x features.
        targets: ``(n,)`` classes, or ``(n,)`` or ``(n, t)`` numbers for regression. None leaves the label
            part out, as needed to compare with clients that have no labels.
        classes: number of classes C; not used for regression.
        label_scale: factor of the label part. With inputs in [0, 1] the label part has norm 1 per example
            against about 9 for an MNIST image.
        task: "classification" (one-hot labels) or "regression" (the numbers themselves).

    Returns:
        ``(d_in, n)`` in the dtype of ``inputs``; d_in is d_x + C, d_x + t, or d_x without targets.

    Raises:
        CoterieError: a label lies outside the classes, or the task is unknown.

    Source: FEDORA, where features and labels together describe a labelled client.
    """
    features = inputs.reshape(inputs.shape[0], inputs[:1].numel())
    if targets is None:
        return features.T
    if task == "classification":
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
            raise CoterieError(f"Labels must lie in 0..{classes - 1}, got {int(targets.min())}..{int(targets.max())}.")
        labels = torch.nn.functional.one_hot(targets.to(torch.int64), classes)
    elif task == "regression":
        labels = targets.reshape(targets.shape[0], targets[:1].numel())
    else:
        raise CoterieError(f"The task must be 'classification' or 'regression', got {task!r}.")
    return torch.cat([features, label_scale * labels.to(features.dtype)], dim=1).T


def principal_subspace(z: Tensor | Sequence[Tensor], rank: int = 1) -> Tensor:
    """Return the first ``rank`` left singular vectors of one matrix or of every client's matrix.

    Each client is computed on its own, in float64, so the result does not depend on who shares the call.
    Signs are fixed: the entry of largest absolute value of every vector is positive.

    Args:
        z: ``(d_in, n)`` for one client; ``(K, d_in, n)`` or a sequence of ``(d_in, n_k)`` for many.
        rank: dimension p of the subspace.

    Returns:
        ``(d_in, p)`` for one client, ``(K, d_in, p)`` for many, in the dtype of ``z`` with orthonormal
        columns. A client whose matrix is not finite gets a basis of NaN.

    Raises:
        CoterieError: ``rank`` is below 1 or above the rank of a client's matrix.

    Source: FEDORA, Equation 4 (truncated singular value decomposition).
    """
    if rank < 1:
        raise CoterieError(f"The rank of a subspace must be at least 1, got {rank}.")
    if isinstance(z, Tensor) and z.ndim == 2:
        return _basis(z, rank, "")
    return torch.stack([_basis(matrix, rank, f" {i + 1} of {len(z)}") for i, matrix in enumerate(z)])


def subspace_similarity(bases: Tensor, others: Tensor | None = None) -> Tensor:
    """Similarity of subspaces: the sum of the cosines of their principal angles.

    These are the singular values of ``U_k' U_l``, so neither the signs of the basis vectors nor a rotation
    within a subspace matter.

    Args:
        bases: ``(K, d_in, p)`` orthonormal bases.
        others: ``(M, d_in, p)`` bases to compare with; the same clients if None.

    Returns:
        ``(K, K)`` or ``(K, M)`` float64 in [0, p]. A basis with NaN gives NaN: its relations are unknown.

    Source: FEDORA, Equation 5 (which says eigenvalues; singular values are meant).
    """
    left = bases.to(torch.float64)
    right = left if others is None else others.to(torch.float64)
    clients, _, p = left.shape
    if p == 1:
        similarity = (left[:, :, 0] @ right[:, :, 0].T).abs()
    else:
        unknown = ~(_known(left)[:, None] & _known(right)[None, :])
        similarity = torch.empty(clients, right.shape[0], dtype=torch.float64, device=left.device)
        columns = torch.nan_to_num(right).permute(1, 0, 2).flatten(1)  # (d_in, M p)
        for k in range(clients):
            inner = torch.nan_to_num(left[k]).T @ columns
            similarity[k] = torch.linalg.svdvals(inner.reshape(p, -1, p).transpose(0, 1)).sum(dim=1)
        similarity[unknown] = torch.nan
    if others is None:
        similarity = (similarity + similarity.T) / 2
    return similarity.clamp(0.0, float(p))


def _known(bases: Tensor) -> Tensor:
    """Say for each basis whether it is finite, ``(K,)`` bool."""
    return torch.isfinite(bases).all(dim=2).all(dim=1)


def _basis(z: Tensor, rank: int, which: str) -> Tensor:
    """Return the first ``rank`` left singular vectors ``(d_in, rank)`` of one matrix."""
    rows, columns = z.shape
    if rank > min(rows, columns):
        raise CoterieError(
            f"A subspace of rank {rank} needs at least as many features and examples, "
            f"but data matrix{which} is {rows} x {columns}; lower the rank."
        )
    # A fresh contiguous copy: memory layout and alignment, too, change the last bits of a product.
    exact = z.detach().to(torch.float64).clone(memory_format=torch.contiguous_format)
    if not bool(torch.isfinite(exact).all()):
        return torch.full((rows, rank), torch.nan, dtype=z.dtype, device=z.device)
    basis, values = _leading_vectors(exact, rank)
    if float(values[-1]) <= max(rows, columns) * torch.finfo(torch.float64).eps * float(values[0]):
        raise CoterieError(f"Data matrix{which} has a rank below {rank}; lower the rank.")
    peak = basis.gather(0, basis.abs().argmax(dim=0, keepdim=True))
    return (basis * peak.sign()).to(z.dtype)


def _leading_vectors(z: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Leading left singular vectors and values, by the smaller Gram matrix where that is accurate."""
    wide = z.shape[0] <= z.shape[1]
    squares, vectors = torch.linalg.eigh(z @ z.T if wide else z.T @ z)
    values = squares[-rank:].flip(0).clamp(min=0.0).sqrt()
    if float(values[-1]) > WELL_CONDITIONED * float(values[0]):
        leading = vectors[:, -rank:].flip(1)
        return (leading if wide else (z @ leading) / values), values
    left, singular, _ = torch.linalg.svd(z, full_matrices=False)
    return left[:, :rank], singular[:rank]
