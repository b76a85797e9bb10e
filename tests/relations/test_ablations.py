"""The similarities of the ablation study."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.relations import (
    cosines,
    gradient_similarity,
    parameter_similarity,
    random_similarity,
    squared_distances,
)

SEEDS = st.integers(0, 2**31 - 1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(SEEDS, st.integers(1, 12))
@settings(deadline=None, max_examples=40)
def test_random_similarity_is_symmetric_thinned_and_seeded(seed: int, clients: int) -> None:
    similarity = random_similarity(clients, generator(seed))
    assert torch.equal(similarity, similarity.T)
    assert bool((similarity.diagonal() == 1).all())
    assert bool(((similarity == 0) | ((similarity >= 0.25) & (similarity <= 1))).all())
    assert torch.equal(similarity, random_similarity(clients, generator(seed)))


def test_random_similarity_has_the_law_of_a_thinned_mean_of_two_uniforms() -> None:
    """P((b + b') / 2 < 1/4) = (1/2)^2 / 2 = 1/8."""
    upper = torch.triu_indices(200, 200, offset=1)
    values = random_similarity(200, generator(0))[upper[0], upper[1]]
    assert abs(float((values == 0).to(torch.float64).mean()) - 0.125) < 0.01


def test_parameter_similarity_by_hand() -> None:
    """Models 0, 1, 3 on a line: squared distances 1, 9, 4, median 4."""
    similarity = parameter_similarity(squared_distances(torch.tensor([0.0, 1.0, 3.0])))
    a, b, c = math.exp(-1 / 4), math.exp(-9 / 4), math.exp(-1)
    expected = torch.tensor([[1, a, b], [a, 1, c], [b, c, 1]], dtype=torch.float64)
    torch.testing.assert_close(similarity, expected, atol=1e-14, rtol=0)


def test_equal_models_are_fully_similar() -> None:
    similarity = parameter_similarity(squared_distances(torch.ones(3, 4)))
    assert torch.equal(similarity, torch.ones(3, 3, dtype=torch.float64))


def test_gradient_similarity_drops_opposite_updates() -> None:
    updates = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [0.0, 0.0]])
    root = math.sqrt(0.5)
    expected = torch.tensor([[1, root, 0, 0], [root, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(gradient_similarity(cosines(updates)), expected, atol=1e-15, rtol=0)


@given(SEEDS, st.permutations(range(4)))
@settings(deadline=None, max_examples=30)
def test_similarities_of_models_follow_their_clients(seed: int, order: list[int]) -> None:
    theta = torch.randn(4, 3, generator=generator(seed), dtype=torch.float64)
    for similarity, permuted in (
        (
            parameter_similarity(squared_distances(theta)),
            parameter_similarity(squared_distances(theta[order])),
        ),
        (gradient_similarity(cosines(theta)), gradient_similarity(cosines(theta[order]))),
    ):
        assert 0 <= float(similarity.min()) <= float(similarity.max()) <= 1
        torch.testing.assert_close(permuted, similarity[order][:, order], atol=1e-12, rtol=0)


def test_nobody_is_similar_to_nobody() -> None:
    nobody = torch.zeros(0, 4)
    assert parameter_similarity(squared_distances(nobody)).shape == (0, 0)
    assert gradient_similarity(cosines(nobody)).shape == (0, 0)
