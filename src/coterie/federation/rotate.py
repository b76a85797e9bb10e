"""Rotation of square or oblong images about their centre, without enlarging the canvas.

Follows ``torchvision.transforms.functional.rotate(images, angle, interpolation, expand=False)`` for tensors:
every output pixel looks up the input at the place where the inverse rotation puts its centre
(``align_corners=False``); places outside are zero; positive angles turn counter-clockwise.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

Interpolation = Literal["nearest", "bilinear"]


def rotation_grid(height: int, width: int, degrees: float) -> Tensor:
    """Where each output pixel looks in the input.

    Returns:
        ``(1, height, width, 2)`` float32: x and y from -1 to 1, edge to edge.
    """
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    # Coordinates in pixels from the centre, and only then scaled to [-1, 1]: an oblong image is turned, not
    # sheared. The matrix product in float32 decides ties between two pixels just as torchvision's does.
    x = torch.linspace(-width * 0.5 + 0.5, width * 0.5 - 0.5, steps=width)
    y = torch.linspace(-height * 0.5 + 0.5, height * 0.5 - 0.5, steps=height)
    base = torch.stack([x.expand(height, width), y[:, None].expand(height, width), torch.ones(height, width)], dim=-1)
    inverse = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]])
    scaled = inverse.T / torch.tensor([0.5 * width, 0.5 * height])
    grid: Tensor = torch.bmm(base.view(1, height * width, 3), scaled[None]).view(1, height, width, 2)
    return grid


def rotate(images: Tensor, degrees: float, interpolation: Interpolation = "nearest") -> Tensor:
    """Rotate ``(n, channels, height, width)`` images by ``degrees``, counter-clockwise; type and shape stay.

    uint8 images stay uint8: ``nearest`` copies values, ``bilinear`` rounds to the nearest level.
    """
    height, width = images.shape[-2:]
    grid = rotation_grid(height, width, degrees)
    if interpolation == "nearest":
        # All images share the grid, so it is looked up once, on an image of pixel numbers (0 stands for
        # "outside").
        numbers = torch.arange(1, height * width + 1, dtype=torch.float32).view(1, 1, height, width)
        source = grid_sample(numbers, grid, mode="nearest", padding_mode="zeros", align_corners=False).long().flatten()
        flat = images.flatten(2)
        return torch.cat([flat.new_zeros(*flat.shape[:2], 1), flat], dim=2)[:, :, source].view(images.shape)
    pixels = images.float()
    turned = grid_sample(
        pixels,
        grid.expand(len(images), -1, -1, -1),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    )
    if not images.is_floating_point():
        turned = turned.round()
    return turned.to(images.dtype)
