"""Office-Home as features: what a network trained on ImageNet sees in pictures of 65 objects, in four styles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.npz import ENDINGS, class_labels, read_npz
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

CLASSES = 65


@register_source(
    "office-home",
    "features of 15,588 pictures of 65 objects in 4 domains (Art, Clipart, Product, Real World)",
    "office-home/features.npz (or .npz.xz) with features (N, d), labels (N,), domains (N,): your own, see the docs",
)
def office_home(data_dir: Path | None) -> Examples:
    """The features ``(N, d)`` float32, one pool without an official test set.

    No file of features is published, so one is made once from the pictures, for instance by the 512 outputs of
    ResNet-18 before its last layer. It holds ``features (N, d)``, ``labels (N,)`` from 0 to 64 and ``domains (N,)``,
    text. Natural groups: ``domain``.

    Raises:
        CoterieError: the file is missing or damaged, or holds arrays of another kind or labels outside the classes.
    """
    expected = "the file features.npz with arrays features (N, d), labels (N,) and domains (N,)"
    path = find(data_dir, "office-home", [f"office-home/features{ending}" for ending in ENDINGS], expected)
    arrays = read_npz(path, {"features": (None, None), "labels": (None,), "domains": (None,)})
    features, domains = arrays["features"], arrays["domains"]
    if not np.issubdtype(features.dtype, np.floating):
        raise CoterieError(f"{path}: 'features' are {features.dtype} where floating point is expected. Convert them.")
    if domains.dtype.kind != "U" or len(domains) != len(features):
        raise CoterieError(
            f"{path}: 'domains' are {len(domains):,} values of {domains.dtype} where the domain of each of "
            f"{len(features):,} examples is expected, as text such as 'Art'."
        )
    labels = class_labels(arrays["labels"], len(features), CLASSES, f"{path}: 'labels'")
    return Examples(
        "office-home",
        torch.from_numpy(features.astype(np.float32)),
        torch.from_numpy(labels),
        classes=CLASSES,
        groups={"domain": [str(domain) for domain in domains.tolist()]},
    )
