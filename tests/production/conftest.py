"""Saves time: torch describes its ONNX operators anew for every export."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from torch.onnx._internal.exporter._registration import ONNXRegistry


@pytest.fixture(scope="package", autouse=True)
def operators_described_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield
