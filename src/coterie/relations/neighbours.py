"""Propagation over a sparse graph of many clients: each listens to a few neighbours.

Source: Wu, Bao, Ainsworth, He, "Personalized Federated Learning with Parameter Propagation", KDD 2023
(FEDORA), Equations 5 to 7, and the authors' code (two neighbours).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array, diags_array, eye_array
from scipy.sparse.linalg import splu
from torch import Tensor

from coterie.errors import CoterieError
from coterie.models.mixing import ENTRIES, Mixing, slices
from coterie.relations.propagation import similarity_graph
from coterie.relations.subspaces import subspace_similarity

SOLVED = 1 << 21
"""Entries of the models that are solved for at a time (8 MiB in float32)."""


def neighbour_graph(
    bases: Tensor,
    *,
    kind: Literal["cos", "exp_cos"] = "exp_cos",
    temperature: float = 10.0,
    topk: int = 2,
    self_loop: bool = False,
    seen: Tensor | None = None,
) -> csr_array:
    """Return ``P = D^-1 W`` of the nearest neighbours, ``(K, K)`` sparse float64, in general not symmetric.

    The same graph as ``row_stochastic(similarity_graph(subspace_similarity(bases), ...))``, of which only a block of
    rows stands in memory at a time.

    Args:
        bases: ``(K, d_in, p)`` subspaces; one with NaN is not known and has no edge.
        kind, temperature, topk, self_loop, seen: as for :func:`similarity_graph`.

    Raises:
        CoterieError: an option is out of range, or ``exp`` would overflow.
    """
    K = len(bases)
    rows, columns, values = [], [], []
    height = max(1, ENTRIES // max(1, K))
    for start in range(0, K, height):
        own = torch.arange(start, min(start + height, K))
        similarity = subspace_similarity(bases[own], bases)
        if not self_loop:
            similarity[own - start, own] = torch.nan
        W = similarity_graph(similarity, kind=kind, temperature=temperature, topk=topk, seen=seen)
        lonely = W.sum(dim=1) == 0  # they keep what they have
        W[lonely.nonzero().flatten(), own[lonely]] = 1.0
        W /= W.sum(dim=1, keepdim=True)
        row, column = W.nonzero(as_tuple=True)
        rows.append(row + start)
        columns.append(column)
        values.append(W[row, column])
    at = (torch.cat(rows).numpy(), torch.cat(columns).numpy())
    return csr_array((torch.cat(values).numpy(), at), shape=(K, K))


class Neighbours(Mixing):
    """``A = (I + alpha (I - P))^-1`` of a sparse P, by a sparse LU decomposition that never writes A out.

    The system is strictly diagonally dominant, its inverse's rows are not negative and sum to one: no entry of
    ``A Theta`` is further off than the largest entry of the residual, and the models' own precision is enough.

    Attributes:
        residual: the largest entry of ``(I + alpha (I - P)) Theta_hat - Theta`` met in any product so far, as a share
            of the largest entry of its Theta.
    """

    def __init__(
        self, P: csr_array | None = None, alpha: float = 0.0, *, exact: bool = False, seen: Tensor | None = None
    ) -> None:
        """P is row-stochastic ``(K, K)``, alpha finite; ``exact`` and ``seen`` as for :func:`propagation_matrix`."""
        if not 0 <= alpha < math.inf:
            raise CoterieError(f"The propagation over a sparse graph needs a finite alpha of at least 0, got {alpha}.")
        self.P, self.alpha = csr_array((0, 0)) if P is None else csr_array(P), alpha
        if exact:
            both = diags_array(np.ones(self.shape[0]) if seen is None else seen.cpu().numpy().astype(np.float64))
            one_sided = (eye_array(self.shape[0]) - both) @ self.P
            self.P = csr_array(both @ (self.P + self.P.T) @ both / 2 + one_sided)
        self.residual = 0.0
        self._systems: dict[torch.dtype, _System] = {}  # decomposed when they are first needed

    @property
    def shape(self) -> tuple[int, int]:
        """``(K, K)``."""
        rows, columns = self.P.shape
        return int(rows), int(columns)

    def product(self, columns: Tensor, out: Tensor | None = None) -> Tensor:
        """``A columns`` for ``columns: (K, m)``, solved on the CPU for a slice of the columns at a time."""
        result = torch.empty_like(columns) if out is None else out
        system = self._system(columns.dtype)
        worst = largest = 0.0
        for part in slices(columns, SOLVED):
            theta = columns[:, part].detach().cpu()
            theta_hat = system.solve(theta)
            if theta.numel():
                worst = max(worst, float((system.matrix @ theta_hat - theta).abs().max()))
                largest = max(largest, float(theta.abs().max()))
            result[:, part] = theta_hat.to(columns.device)
        self.residual = max(self.residual, worst / largest if largest else 0.0)
        return result

    def greatest(self, columns: Tensor) -> Tensor:
        """The largest over all who pass something on to a client, however indirectly, and its own."""
        rates = self._rates().tocoo()
        takers, givers = (torch.from_numpy(each.astype(np.int64)).to(columns.device) for each in (rates.row, rates.col))
        index = takers[:, None].expand(-1, columns.shape[1])
        result, before = columns.clone(), None
        while before is None or not torch.equal(result, before):
            before = result.clone()
            result.scatter_reduce_(0, index, before[givers], "amax")
        return result

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the graph, from which the rest follows."""
        return {
            "clients": self.shape[0], "alpha": self.alpha, "residual": self.residual,
            "starts": torch.from_numpy(self.P.indptr).clone(), "columns": torch.from_numpy(self.P.indices).clone(),
            "values": torch.from_numpy(self.P.data).clone(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        values, columns, starts = (state[name].cpu().numpy() for name in ("values", "columns", "starts"))
        self.P = csr_array((values, columns, starts), shape=(state["clients"], state["clients"]))
        self.alpha, self.residual = state["alpha"], state["residual"]
        if state.get("exact"):  # an earlier version kept the graph as it was
            self.P = csr_array((self.P + self.P.T) / 2)
        self._systems = {}

    def _rates(self) -> csr_array:
        """How strongly each client listens to each other, ``(K, K)`` without a diagonal."""
        rates = csr_array(self.P - diags_array(self.P.diagonal()))
        rates.eliminate_zeros()
        return rates

    def _system(self, dtype: torch.dtype) -> _System:
        """``I + alpha L`` with the Laplacian L of the rates, decomposed once, in the models' dtype."""
        if dtype not in self._systems:
            rates = self._rates()
            laplacian = diags_array(rates.sum(axis=1)) - rates
            self._systems[dtype] = _System(csc_array(eye_array(self.shape[0]) + self.alpha * laplacian), dtype)
        return self._systems[dtype]


class _System:
    """A sparse matrix ``(K, K)`` and its LU decomposition."""

    def __init__(self, matrix: csc_array, dtype: torch.dtype) -> None:
        self.matrix = _sparse(matrix, dtype)
        self.factors = splu(matrix)
        self.rows = torch.from_numpy(np.argsort(self.factors.perm_r))
        self.columns = torch.from_numpy(self.factors.perm_c.astype(np.int64))
        self.lower, self.upper = _sparse(self.factors.L, dtype), _sparse(self.factors.U, dtype)

    def solve(self, right: Tensor) -> Tensor:
        """The solution for ``right: (K, w)`` on the CPU, in its dtype."""
        if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
            # SuperLU's own, slower for many columns
            return torch.from_numpy(self.factors.solve(right.double().numpy())).to(right.dtype)
        half = torch.triangular_solve(right[self.rows], self.lower, upper=False, unitriangular=True).solution
        return torch.triangular_solve(half, self.upper, upper=True).solution[self.columns]


def _sparse(matrix: csc_array | csr_array, dtype: torch.dtype) -> Tensor:
    """A scipy matrix as a torch one, ordered by rows."""
    by_row = csr_array(matrix)
    starts, columns, values = (torch.from_numpy(each) for each in (by_row.indptr, by_row.indices, by_row.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch announces on first use that its interface may change
        return torch.sparse_csr_tensor(
            starts, columns, values, size=by_row.shape, dtype=dtype, check_invariants=False
        )  # fmt: skip
