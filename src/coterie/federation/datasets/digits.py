"""scikit-learn's digits: the embedded default, which needs neither files nor a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples


@register_source("digits", "1,797 handwritten digits of 8 x 8 pixels, 10 classes; comes with scikit-learn")
def digits(data_dir: Path | None) -> Examples:
    """All 1,797 images, ``(1797, 1, 8, 8)`` float32 in [0, 1]; no official test set, no files."""
    from sklearn.datasets import load_digits  # takes two seconds, and most runs read other data

    bunch = load_digits()
    images = np.asarray(bunch.images, dtype=np.float32)[:, None] / np.float32(16)  # grey levels are 0 .. 16
    targets = np.asarray(bunch.target, dtype=np.int64)
    return Examples("digits", torch.from_numpy(images), torch.from_numpy(targets), classes=10)
