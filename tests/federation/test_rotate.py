from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from coterie.federation.rotate import Interpolation, rotate


def images(height: int = 28, width: int = 28, n: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (n, 2, height, width), dtype=torch.uint8, generator=generator)


def by_index(image: np.ndarray, degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Nearest-neighbour rotation by plain index arithmetic, and where rounding is too close to call.

    Rows grow downwards, so turning the picture counter-clockwise means that the output pixel at (dx, dy)
    from the centre shows the input pixel at (cos dx - sin dy, sin dx + cos dy).
    """
    height, width = image.shape
    angle = np.deg2rad(degrees)
    out = np.zeros_like(image)
    close = np.zeros(image.shape, dtype=bool)
    for row in range(height):
        for column in range(width):
            dx, dy = column - (width - 1) / 2, row - (height - 1) / 2
            x = np.cos(angle) * dx - np.sin(angle) * dy + (width - 1) / 2
            y = np.sin(angle) * dx + np.cos(angle) * dy + (height - 1) / 2
            close[row, column] = any(abs(v - np.floor(v) - 0.5) < 1e-4 for v in (x, y))
            i, j = round(y), round(x)
            if 0 <= i < height and 0 <= j < width:
                out[row, column] = image[i, j]
    return out, close


@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (6, 10), (7, 7)])
@pytest.mark.parametrize("degrees", [0, 5, 10, 18, 30, 45, 77.7, 135, 180, 215, 350, -20])
def test_nearest_equals_index_arithmetic(shape: tuple[int, int], degrees: float) -> None:
    before = images(*shape)
    after = rotate(before, degrees)
    for image, turned in zip(before.flatten(0, 1).numpy(), after.flatten(0, 1).numpy(), strict=True):
        wanted, close = by_index(image, degrees)
        assert np.array_equal(turned[~close], wanted[~close])
        assert close.mean() <= 0.25  # ties are few: at most the diagonals, at 45 degrees


@pytest.mark.parametrize("quarter", [0, 1, 2, 3, 4, -1])
@pytest.mark.parametrize("size", [28, 8, 7])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_quarter_turns_are_exact_and_counter_clockwise(quarter: int, size: int, interpolation: Interpolation) -> None:
    before = images(size, size)
    after = rotate(before, 90 * quarter, interpolation)
    assert after.dtype == torch.uint8
    assert torch.equal(after, torch.rot90(before, quarter, (2, 3)))


@pytest.mark.parametrize("degrees", [10, 45, 200])
def test_bilinear_equals_scipy(degrees: float) -> None:
    before = images().float() / 255
    after = rotate(before, degrees, "bilinear")
    for image, turned in zip(before.flatten(0, 1).numpy(), after.flatten(0, 1).numpy(), strict=True):
        # grid-constant blends with zeros outside, as grid_sample does; scipy turns the other way for axes
        # (1, 0)
        wanted = ndimage.rotate(image.astype(np.float64), degrees, reshape=False, order=1, mode="grid-constant")
        np.testing.assert_allclose(turned, wanted, atol=2e-4)


def test_bytes_and_floats_agree() -> None:
    before = images()
    assert torch.equal(rotate(before, 33).float(), rotate(before.float(), 33))
    rounded = rotate(before.float(), 33, "bilinear").round()
    assert torch.equal(rotate(before, 33, "bilinear").float(), rounded)


def test_corners_are_filled_with_zero() -> None:
    turned = rotate(images(), 45)
    assert turned[..., 0, 0].max() == 0
    assert turned[..., 14, 14].min() > 0
