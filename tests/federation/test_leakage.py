"""Windows that overlap and pictures of one sign stay on one side of a split, where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation
from coterie.federation.datasets.uci_har import recordings

SPLITS = ("train", "validation", "test")


def write_motion(root: Path, people: int = 3, signals: int = 8, windows: int = 6) -> None:
    """Signals of consecutive windows, cut with half overlap and shuffled; neighbours in the file are strangers."""
    draw = np.random.default_rng(0)
    cut, subject = [], []
    for person in range(people):
        for _ in range(signals):
            signal = draw.integers(-500, 500, size=(9, 16 * (windows + 1)), dtype=np.int16)
            cut += [signal[:, 16 * i : 16 * i + 32] for i in range(windows)]
            subject += [person] * windows
    order = draw.permutation(len(cut))
    (root / "uci-har").mkdir()
    np.savez(
        root / "uci-har" / "uci_har_32steps.npz", X=np.stack(cut)[order], y=np.arange(len(cut)) % 6,
        subject=np.array(subject)[order], scale=np.float32(1),
    )  # fmt: skip


def halves(federation: Federation, split: str) -> set[bytes]:
    data = federation.split(split)  # type: ignore[arg-type]
    assert data.index is not None
    inputs = data.inputs[data.index].numpy()
    return {half.tobytes() for half in np.concatenate([inputs[:, :, :16], inputs[:, :, 16:]])}


def shared(federation: Federation) -> int:
    train, validation, test = (halves(federation, split) for split in SPLITS)
    return len(train & test) + len(train & validation) + len(validation & test)


@pytest.mark.parametrize("partition", [{"rule": "natural"}, {"rule": "dirichlet", "clients": 3, "alpha": 1.0}])
def test_no_window_overlaps_one_of_another_split(tmp_path: Path, partition: dict[str, object]) -> None:
    write_motion(tmp_path)
    section = {"source": "uci-har", "partition": partition}
    assert shared(build_federation(section, seed=0, data_dir=tmp_path)) > 20  # this is what leaks
    apart = build_federation({**section, "keep_together": "recordings"}, seed=0, data_dir=tmp_path)
    assert shared(apart) == 0
    assert sum(apart.split(split).total for split in SPLITS) == 144  # type: ignore[arg-type]


def test_recordings_are_put_together_again() -> None:
    signal = np.arange(9 * 80).reshape(9, 80)
    windows = np.stack([signal[:, start : start + 32] for start in (32, 0, 16, 48)] + [signal[:, 16:48]])
    people = np.array([1, 1, 1, 1, 2])
    assert recordings(windows, people) == [0, 0, 0, 0, 1]  # another person's equal window is another recording
    assert recordings(windows[[0, 1, 3]], people[:3]) == [0, 1, 0]  # the window between the first two is missing


def test_published_windows(real_file: Callable[[str], Path]) -> None:
    root = real_file("uci-har/uci_har_32steps.npz.xz")
    section = {"source": "uci-har", "partition": {"rule": "natural"}, "keep_together": "recordings"}
    federation = build_federation(section, seed=0, data_dir=root)
    assert shared(federation) == 0
    assert federation.k == 30
    fractions = (federation.test.n / sum(federation.split(split).n for split in SPLITS)).numpy()  # type: ignore[arg-type]
    assert fractions.min() > 0.17
    assert fractions.max() < 0.23
    counts = federation.class_counts("train")
    assert int(counts.min()) > 0


def test_pictures_of_one_track_stay_together(tmp_path: Path) -> None:
    (tmp_path / "gtsrb").mkdir()
    track = np.arange(430) // 5 % 2 + 1
    np.savez(
        tmp_path / "gtsrb" / "gtsrb_32x32_5000.npz", x=np.zeros((430, 32, 32, 3), dtype=np.uint8),
        y=np.arange(430) // 10, track=track,
    )  # fmt: skip
    section = {"source": "gtsrb", "partition": {"rule": "iid", "clients": 2}, "keep_together": "tracks"}
    federation = build_federation(section, seed=0, data_dir=tmp_path)
    sides = []
    for split in SPLITS:
        index = federation.split(split).index  # type: ignore[arg-type]
        assert index is not None
        sides.append(set((index // 5).tolist()))
    assert not sides[0] & sides[1]
    assert not (sides[0] | sides[1]) & sides[2]
    rotated = {**section, "partition": {"rule": "rotation", "clients": 2}, "train": 100, "validation": 50, "test": 50}
    with pytest.raises(CoterieError, match=r"The rule rotation puts examples of the block '000.*no blocks"):
        build_federation(rotated, seed=0, data_dir=tmp_path)
