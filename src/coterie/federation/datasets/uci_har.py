"""UCI HAR: what people do, from the motion sensors of a phone at their waist; 30 people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.npz import ENDINGS, class_labels, read_npz
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

CLASSES = 6  # walking, upstairs, downstairs, sitting, standing, laying
FILE = "uci_har_32steps"


@register_source(
    "uci-har",
    "10,299 windows of motion of 30 people: 9 channels of 32 steps, 6 activities",
    f"uci-har/{FILE}.npz (or .npz.xz) with X (N, 9, 32), y (N,), subject (N,), scale",
)
def uci_har(data_dir: Path | None) -> Examples:
    """The windows ``(N, 9, 32)`` float32 in g and rad/s, one pool without an official test set.

    Channels: acceleration of the body x y z, gyroscope x y z, total acceleration x y z. Natural groups: ``subject``.
    Windows overlap by half, so a random split of one person's windows has near copies on both sides: accuracy inside
    a client is too good, while comparisons between methods remain fair.

    Raises:
        CoterieError: the file is missing or damaged, or holds arrays of another kind or labels outside the classes.
    """
    expected = f"the file {FILE}.npz.xz with arrays X (N, 9, 32), y (N,), subject (N,) and scale"
    path = find(data_dir, "uci-har", [f"uci-har/{FILE}{ending}" for ending in ENDINGS], expected)
    arrays = read_npz(path, {"X": (None, 9, 32), "y": (None,), "subject": (None,), "scale": ()})
    windows, subjects = arrays["X"], arrays["subject"]
    for name in ("X", "subject"):
        if not np.issubdtype(arrays[name].dtype, np.integer):
            raise CoterieError(f"{path}: {name!r} is {arrays[name].dtype} where whole numbers are expected.")
    if len(subjects) != len(windows):
        raise CoterieError(f"{path}: 'subject' has {len(subjects):,} entries for {len(windows):,} windows.")
    labels = class_labels(arrays["y"], len(windows), CLASSES, f"{path}: the labels 'y'")
    return Examples(
        "uci-har",
        torch.from_numpy(windows.astype(np.float32) * np.float32(arrays["scale"])),
        torch.from_numpy(labels),
        classes=CLASSES,
        groups={"subject": [f"subject-{int(subject):02d}" for subject in subjects.tolist()]},
    )
