"""Whom a client asks: a compromise between those that served it well and those it knows little of."""

import numpy as np
from numpy.typing import NDArray


def epsilon_greedy(
    weights: NDArray[np.float64], own: int, count: int, epsilon: float, generator: np.random.Generator
) -> list[int]:
    """Neighbours of one client, slot by slot and without replacement.

    With probability ``epsilon`` a slot takes a uniformly random client, otherwise the one of largest weight; ties are
    broken at random.

    Args:
        weights: ``(K,)`` what each client is worth to the asker.
        own: the asker, who is never its own neighbour.
        count: slots; at most K - 1 are filled.
        epsilon: probability in [0, 1] of exploring.
        generator: the asker's random numbers of this round.

    Returns:
        The chosen clients in the order of their slots.

    Source: "Find Your Friends: Personalized Federated Learning with the Right Collaborators" (FedeRiCo), Algorithm 1;
    the decision for each slot is ours.
    """
    left = [int(client) for client in generator.permutation(len(weights)) if client != own]
    chosen = []
    for _ in range(min(count, len(left))):
        explore = generator.random() < epsilon
        # argmax takes the first of equals, and their order is random
        position = int(generator.integers(len(left)) if explore else np.argmax(weights[left]))
        chosen.append(left.pop(position))
    return chosen
