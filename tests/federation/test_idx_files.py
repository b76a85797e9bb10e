from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests
import torch

from coterie.errors import CoterieError
from coterie.federation.datasets import find_source
from coterie.federation.datasets.files import data_directory
from coterie.federation.datasets.mnist import TEST_IMAGES, TRAIN_IMAGES, TRAIN_LABELS
from coterie.federation.examples import Examples


def load(folder: Path, source: str = "mnist") -> Examples:
    return find_source(source).load(folder)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Downloads fail at once; the list collects the addresses asked for."""
    asked: list[str] = []

    def retrieve(url: str, **_: object) -> str:
        asked.append(url)
        raise requests.exceptions.ConnectionError("no route")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    return asked


def test_reads_both_parts(idx_folder: Path) -> None:
    examples = load(idx_folder)
    assert examples.inputs.shape == (80, 1, 6, 4)
    assert examples.inputs.dtype == torch.uint8
    assert (examples.boundary, examples.scale, examples.classes) == (60, 1 / 255, 10)
    raw = gzip.decompress((idx_folder / "mnist" / TRAIN_IMAGES).read_bytes())
    assert examples.inputs[0].flatten().tolist() == list(raw[16 : 16 + 24])
    assert examples.targets[60:].tolist() == list(range(10)) * 2


def test_plain_files_and_the_torchvision_layout(idx_folder: Path) -> None:
    wanted = load(idx_folder)
    raw = idx_folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in sorted((idx_folder / "mnist").iterdir()):
        (raw / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    found = load(idx_folder)
    assert torch.equal(found.inputs, wanted.inputs)
    assert found.digest == wanted.digest


def test_digest_depends_on_inputs_and_targets(idx_folder: Path) -> None:
    before = load(idx_folder).digest
    rewrite(idx_folder / "mnist" / TRAIN_LABELS, lambda b: b[:-1] + b"\x00")
    assert load(idx_folder).digest != before


def test_missing_file_names_places_and_remedy(idx_folder: Path, offline: list[str]) -> None:
    (idx_folder / "mnist" / TRAIN_LABELS).unlink()
    with pytest.raises(CoterieError) as caught:
        load(idx_folder)
    message = str(caught.value)
    for part in (
        TRAIN_LABELS,
        str(idx_folder / "mnist"),
        str(idx_folder / "MNIST/raw"),
        "--data-dir",
        "COTERIE_DATA",
    ):
        assert part in message
    assert "ConnectionError" in message
    assert len(offline) == 2  # both mirrors
    assert all(url.startswith("https://") and url.endswith(TRAIN_LABELS) for url in offline)


def test_download_goes_into_the_data_directory(
    idx_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path_factory.mktemp("empty")
    hashes = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path, downloader: object) -> str:
        hashes.append(known_hash)
        path.mkdir(parents=True, exist_ok=True)
        (path / fname).write_bytes((idx_folder / "mnist" / fname).read_bytes())
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(load(target)) == 80
    assert len(hashes) == 4
    assert all(h.startswith("sha256:") and len(h) == 71 for h in hashes)
    assert len(load(target)) == 80  # found, not downloaded again
    assert len(hashes) == 4


def test_wrong_checksum_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(url: str, path: Path, **_: object) -> str:
        path.mkdir(exist_ok=True)
        raise ValueError("SHA256 hash of downloaded file does not match")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(CoterieError, match=r"ossci-datasets\.s3\.amazonaws\.com: wrong checksum"):
        load(tmp_path)
    assert not list(tmp_path.iterdir()), "an empty folder"


def test_truncated_gzip(idx_folder: Path) -> None:
    path = idx_folder / "mnist" / TRAIN_IMAGES
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CoterieError, match=f"{TRAIN_IMAGES} is truncated or damaged .*Download or copy it again"):
        load(idx_folder)


def test_damaged_gzip(idx_folder: Path) -> None:
    path = idx_folder / "mnist" / TRAIN_IMAGES
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(CoterieError, match=f"{TRAIN_IMAGES} is truncated or damaged"):
        load(idx_folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-10], "is truncated: 1,446 bytes where at least 1,456 are expected"),
        (lambda b: b[:9], "is truncated: 9 bytes"),
        (lambda b: b + b"xy", "holds 2 bytes more than its header announces"),
        (lambda b: b"\x00\x00\x0d\x03" + b[4:], "starts with 00000d03 where 00000803 is expected"),
        (lambda b: b"PNG?" + b[4:], "starts with 504e473f where 00000803 is expected. Replace it"),
        (lambda b: b"", "starts with nothing"),
    ],
)
def test_wrong_content(idx_folder: Path, change: Callable[[bytes], bytes], message: str) -> None:
    path = idx_folder / "mnist" / TRAIN_IMAGES
    rewrite(path, change)
    with pytest.raises(CoterieError) as caught:
        load(idx_folder)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_labels_in_place_of_images(idx_folder: Path) -> None:
    folder = idx_folder / "mnist"
    (folder / TRAIN_IMAGES).write_bytes((folder / TRAIN_LABELS).read_bytes())
    with pytest.raises(CoterieError, match="no IDX file of images: it starts with 00000801"):
        load(idx_folder)


def test_label_count_must_match(idx_folder: Path) -> None:
    rewrite(idx_folder / "mnist" / TRAIN_LABELS, lambda b: b[:4] + (59).to_bytes(4, "big") + b[8:-1])
    with pytest.raises(CoterieError, match=f"{TRAIN_LABELS} has 59 labels but .*{TRAIN_IMAGES} has 60 images"):
        load(idx_folder)


def test_label_outside_the_classes(idx_folder: Path) -> None:
    rewrite(idx_folder / "mnist" / TRAIN_LABELS, lambda b: b[:-1] + b"\x0b")
    with pytest.raises(CoterieError, match=f"{TRAIN_LABELS} holds the label 11, outside the classes 0 .. 9"):
        load(idx_folder)


def test_image_sizes_must_agree(idx_folder: Path) -> None:
    shape = b"".join(n.to_bytes(4, "big") for n in (20, 4, 6))
    rewrite(idx_folder / "mnist" / TEST_IMAGES, lambda b: b[:4] + shape + b[16:])
    with pytest.raises(CoterieError, match="belong to different data sets"):
        load(idx_folder)


def test_a_folder_in_place_of_a_file(idx_folder: Path) -> None:
    path = idx_folder / "mnist" / TRAIN_IMAGES
    path.unlink()
    path.mkdir()
    with pytest.raises(CoterieError, match="cannot be read: Is a directory"):
        load(idx_folder)


def test_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "named"))
    assert data_directory(tmp_path) == tmp_path
    assert data_directory(None) == tmp_path / "named"
    monkeypatch.delenv("COTERIE_DATA")
    assert data_directory(None) == Path(pooch.os_cache("coterie"))


@pytest.mark.data
@pytest.mark.parametrize(("source", "mean"), [("mnist", 0.1307), ("fashion-mnist", 0.2860)])
def test_real_files(real_data: Callable[[str], Path], source: str, mean: float) -> None:
    examples = load(real_data(source), source)
    train = examples.inputs[:60_000].numpy()
    assert examples.inputs.shape == (70_000, 1, 28, 28)
    assert examples.boundary == 60_000
    assert train.mean() / 255 == pytest.approx(mean, abs=5e-5)
    counts = np.bincount(examples.labels[:60_000]).tolist()
    if source == "mnist":
        assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    else:
        assert counts == [6000] * 10
