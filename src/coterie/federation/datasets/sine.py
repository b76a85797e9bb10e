"""FedeRiCo's toy: every client sees another stretch of a sine curve, so neighbours are the ones to learn from."""

from __future__ import annotations

import math

import numpy as np
import torch

from coterie.federation.datasets.registry import register_generator
from coterie.federation.examples import Examples

INTERVALS, POINTS, NOISE = 8, 100, 0.1


@register_generator("sine", "800 noisy points of a sine curve in 8 intervals, drawn from the seed; regression")
def sine(seed: int) -> Examples:
    """Places ``(800, 1)`` and heights ``(800, 1)`` float32 over ``[0, 2 pi]``, 100 points an interval.

    ``y = sin(x) + 0.1 e`` with ``x`` uniform in its interval and ``e`` standard normal. Natural groups: ``interval``,
    8 of equal length. The paper gives neither their number nor the noise.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 1]))  # another stream than that of the division
    interval = np.repeat(np.arange(INTERVALS), POINTS)
    x = (interval + generator.uniform(size=interval.shape)) * (2 * math.pi / INTERVALS)
    y = np.sin(x) + NOISE * generator.standard_normal(interval.shape)
    return Examples(
        "sine",
        torch.from_numpy(x[:, None]).float(),
        torch.from_numpy(y[:, None]).float(),
        classes=1,
        task="regression",
        groups={"interval": [f"interval-{i}" for i in interval.tolist()]},
    )
