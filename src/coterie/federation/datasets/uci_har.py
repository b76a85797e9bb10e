"""UCI HAR: what people do, from the motion sensors of a phone at their waist; 30 people."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.npz import ENDINGS, class_labels, read_npz
from coterie.federation.datasets.registry import Options, register_source
from coterie.federation.examples import Examples

CLASSES = 6  # walking, upstairs, downstairs, sitting, standing, laying
FILE = "uci_har_32steps"


class UciHar(Options):
    """Options of the source ``uci-har``."""

    keep_together: Literal["nothing", "recordings"] = Field(
        "nothing", description="what goes to one split as a whole; recordings: no window overlaps one of another split"
    )


@register_source(
    "uci-har",
    "10,299 windows of motion of 30 people: 9 channels of 32 steps, 6 activities",
    f"uci-har/{FILE}.npz (or .npz.xz) with X (N, 9, 32), y (N,), subject (N,), scale",
    options=UciHar,
)
def uci_har(data_dir: Path | None, options: UciHar) -> Examples:
    """The windows ``(N, 9, 32)`` float32 in g and rad/s, one pool without an official test set.

    Channels: acceleration of the body x y z, gyroscope x y z, total acceleration x y z. Natural groups: ``subject``.
    Windows overlap by half, so a random split of one person's windows, which is what papers do, has near copies on both
    sides: accuracy inside a client is too good, while comparisons between methods remain fair. ``keep_together:
    recordings`` finds the overlaps and keeps what was recorded in one go in one split.

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
        blocks=recordings(windows, subjects) if options.keep_together == "recordings" else None,
    )


def recordings(windows: NDArray[np.generic], subjects: NDArray[np.generic]) -> list[int]:
    """The recording that each window is from, as a number: windows overlap by half, so one goes on where another ends.

    Half windows are points, and a window joins the two that it is made of; what hangs together is a recording. Values
    are compared exactly, within one person.

    Args:
        windows: ``(N, 9, 32)``.
        subjects: ``(N,)``.
    """
    import pandas as pd
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    middle = windows.shape[2] // 2
    halves = np.concatenate([windows[:, :, :middle], windows[:, :, middle:]]).reshape(2 * len(windows), -1)
    owned = zip(np.tile(subjects, 2).tolist(), halves, strict=True)
    keys = [f"{subject}:".encode() + half.tobytes() for subject, half in owned]
    point, _ = pd.factorize(np.array(keys, dtype=object))
    first, second = np.split(point, 2)
    joined = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(point.max() + 1, point.max() + 1))
    _, part = connected_components(joined, directed=False)
    numbers: list[int] = pd.factorize(part[first])[0].tolist()
    return numbers
