"""Other measures of similarity between clients, to compare with FEDORA's similarity of data subspaces.

All have self value 1, are symmetric and non-negative, and feed the same graph as the data similarity.
Source: Wu et al., KDD 2023, ablation of the client similarity.
"""

import torch
from torch import Tensor

from coterie.relations.distances import median_distance

THRESHOLD = 0.25
"""Random similarities below this are 0, which is no edge of the kind cos."""


def random_similarity(clients: int, generator: torch.Generator) -> Tensor:
    """Similarities without any meaning: symmetrised uniform numbers, thinned out.

    Args:
        clients: number of clients K.
        generator: CPU random generator; the only source of randomness.

    Returns:
        ``(K, K)`` float64: ``(b + b') / 2`` with ``b`` uniform on [0, 1), entries below 0.25 set to 0,
        diagonal 1.

    Source: the random client relations of FedU (Dinh et al., 2021), used by FEDORA's ablation.
    """
    draw = torch.rand(clients, clients, generator=generator, dtype=torch.float64)
    similarity = (draw + draw.T) / 2
    similarity[similarity < THRESHOLD] = 0.0
    return similarity.fill_diagonal_(1.0)


def parameter_similarity(sq_distances: Tensor) -> Tensor:
    """Similarity of current models, ``exp(-|theta_k - theta_l|^2 / median)``.

    Args:
        sq_distances: ``(K, K)`` squared distances between the models; the unit is their median over pairs.

    Returns:
        ``(K, K)`` float64 in [0, 1], diagonal 1; NaN where the distance is NaN.
    """
    similarity = torch.exp(-sq_distances.to(torch.float64) / median_distance(sq_distances))
    return similarity.fill_diagonal_(1.0)


def gradient_similarity(cosines: Tensor) -> Tensor:
    """Similarity of last updates, ``max(0, cos(delta theta_k, delta theta_l))``.

    Args:
        cosines: ``(K, K)`` cosines between the clients' last updates.

    Returns:
        ``(K, K)`` float64 in [0, 1], diagonal 1; NaN where the cosine is NaN.
    """
    return cosines.to(torch.float64).clamp(min=0.0).fill_diagonal_(1.0)
