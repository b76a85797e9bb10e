from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import requests
import torch
from written import python2_batch

from coterie.errors import CoterieError
from coterie.federation.datasets import find_source
from coterie.federation.datasets.pickles import unpickle
from coterie.federation.examples import Examples

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVES = {"cifar10": "cifar-10-python.tar", "cifar100": "cifar-100-python.tar"}


def images(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def batches(source: str) -> dict[str, bytes]:
    """Tiny batches of both sets; image 1 of the first one is traced by the tests."""
    if source == "cifar10":
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        return {name: python2_batch(images(4, i), [i, 9 - i, 0, 9]) for i, name in enumerate(names)}
    return {
        name: python2_batch(images(n, i), list(range(100 - n, 100)), "fine_labels")
        for i, (name, n) in enumerate((("train", 6), ("test", 3)))
    }


def write_folder(root: Path, source: str, content: dict[str, bytes]) -> Path:
    folder = root / FOLDERS[source]
    folder.mkdir(parents=True)
    for name, raw in content.items():
        (folder / name).write_bytes(raw)
    return folder


def write_archive(root: Path, source: str, content: dict[str, bytes], form: str, prefix: str = "") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{ARCHIVES[source]}.{form}"
    with tarfile.open(path, f"w:{form}") as archive:
        for name, raw in content.items():
            info = tarfile.TarInfo(f"{prefix}{FOLDERS[source]}/{name}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return path


def load(root: Path, source: str = "cifar10") -> Examples:
    return find_source(source).load(root)


@pytest.mark.parametrize("source", ["cifar10", "cifar100"])
def test_the_published_folder(tmp_path: Path, source: str) -> None:
    write_folder(tmp_path / source, source, batches(source))
    examples = load(tmp_path, source)
    n, boundary = (24, 20) if source == "cifar10" else (9, 6)
    assert examples.inputs.shape == (n, 3, 32, 32)
    assert examples.inputs.dtype == torch.uint8
    assert (examples.boundary, examples.scale) == (boundary, 1 / 255)
    assert examples.classes == (10 if source == "cifar10" else 100)
    # 1,024 red values, row by row, then green, then blue
    assert torch.equal(examples.inputs[1].flatten(), torch.from_numpy(images(4 if n == 24 else 6, 0)[1]))
    assert examples.targets[:4].tolist() == ([0, 9, 0, 9] if source == "cifar10" else [94, 95, 96, 97])


@pytest.mark.parametrize("form", ["gz", "xz"])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_the_archive_is_read_in_place(tmp_path: Path, form: str, prefix: str) -> None:
    write_folder(tmp_path / "unpacked", "cifar10", batches("cifar10"))
    packed = tmp_path / "packed" / "cifar10"
    write_archive(packed, "cifar10", batches("cifar10"), form, prefix)
    assert load(tmp_path / "packed").digest == load(tmp_path / "unpacked").digest
    assert [path.name for path in packed.iterdir()] == [f"cifar-10-python.tar.{form}"]


def test_batches_of_other_writers(tmp_path: Path) -> None:
    """Python 3's pickle with keys of bytes, as ``encoding='bytes'`` and a new dump leave them."""
    wanted = batches("cifar10")
    write_folder(tmp_path / "a", "cifar10", wanted)
    for protocol in (2, 4):
        again = {
            name: pickle.dumps({k.encode(): v for k, v in unpickle(raw).items()}, protocol)
            for name, raw in wanted.items()
        }
        write_folder(tmp_path / f"b{protocol}", "cifar10", again)
        assert load(tmp_path / f"b{protocol}").digest == load(tmp_path / "a").digest


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch /tmp/coterie-was-here",))


@pytest.mark.parametrize(
    ("raw", "asked"),
    [
        (pickle.dumps(Evil(), 2), "posix.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
        (b"cnumpy\nload\n(S'x'\ntR.", "numpy.load"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00zip\ntR.", "."),
        (pickle.dumps({"data": {1, 2}, "f": open}, 4), "open"),
    ],
)
def test_a_pickle_cannot_run_anything(tmp_path: Path, raw: bytes, asked: str) -> None:
    write_folder(tmp_path / "cifar10", "cifar10", {**batches("cifar10"), "data_batch_3": raw})
    with pytest.raises(CoterieError, match=f"data_batch_3 in .* is damaged or no batch of cifar10 .*{asked}"):
        load(tmp_path)
    assert not Path("/tmp/coterie-was-here").exists()


def test_a_pickle_cannot_change_what_reads_it() -> None:
    named = b"c_codecs\nencode\n"
    for state in (b"}X\x05\x00\x00\x00helloK\x01s", b"(N}X\x08\x00\x00\x00__call__K\x01st"):
        with pytest.raises(ValueError, match="attribute"):
            unpickle(b"\x80\x02" + named + state + b"b.")
    assert unpickle(named + b"(X\x01\x00\x00\x00aX\x06\x00\x00\x00latin1tR.") == b"a"


def test_links_in_an_archive_are_no_batches(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "cifar10", "cifar10", {}, "gz")
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(CoterieError, match="holds no cifar-10-batches-py/data_batch_1"):
        load(tmp_path)


def test_only_latin_1_is_encoded() -> None:
    raw = b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00utf-7tR."
    with pytest.raises(ValueError, match="encoding 'utf-7'"):
        unpickle(raw)


def good(**changes: Any) -> bytes:
    return pickle.dumps({"data": images(4, 0), "labels": [0, 1, 2, 3], **changes}, 2)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (good()[:-100], "is damaged or no batch of cifar10"),
        (b"", "is damaged or no batch of cifar10"),
        (pickle.dumps([1, 2]), r"has NoneType where an array of uint8 \(n, 3072\) 'data' is expected"),
        (good(data=images(4, 0)[:, :3000]), r"has uint8 \(4, 3000\) where"),
        (good(data=images(4, 0).astype(float)), r"has float64 \(4, 3072\) where"),
        (good(labels=[0, 1, 2, 10]), r"holds the label 10, outside the classes 0 \.\. 9"),
        (good(labels=[0, 1, 2, -1]), r"holds the label -1, outside"),
        (good(labels=[0, 1, 2]), "has 4 images but 3 labels"),
        (good(labels=["cat"] * 4), "has no list 'labels' of whole numbers"),
        (pickle.dumps({"data": images(4, 0)}, 2), "has no list 'labels'"),
    ],
)
def test_wrong_batches(tmp_path: Path, raw: bytes, message: str) -> None:
    write_folder(tmp_path / "cifar10", "cifar10", {**batches("cifar10"), "data_batch_2": raw})
    with pytest.raises(CoterieError, match=f"data_batch_2 in .*{message}.*Download or copy the archive again"):
        load(tmp_path)


def test_an_incomplete_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "cifar10", "cifar10", batches("cifar10"))
    (folder / "data_batch_4").unlink()
    (folder / "test_batch").unlink()
    with pytest.raises(CoterieError, match="cifar-10-batches-py lacks data_batch_4, test_batch: unpack"):
        load(tmp_path)


@pytest.mark.parametrize("form", ["gz", "xz"])
@pytest.mark.parametrize("kept", [0.1, 0.9])
def test_a_truncated_archive(tmp_path: Path, form: str, kept: float) -> None:
    path = write_archive(tmp_path / "cifar10", "cifar10", batches("cifar10"), form)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(CoterieError, match=f"cifar-10-python.tar.{form} .*truncated.*Download or copy it again"):
        load(tmp_path)


def test_no_archive_at_all(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(CoterieError, match="is truncated or damaged"):
        load(tmp_path)


def test_the_archive_of_the_other_set(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "cifar10", "cifar100", batches("cifar100"), "gz")
    path.rename(path.with_name("cifar-10-python.tar.gz"))
    with pytest.raises(CoterieError, match="holds no cifar-10-batches-py/data_batch_1: it is truncated or another"):
        load(tmp_path)


def test_missing_files_are_downloaded_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(url: str, **_: object) -> str:
        raise requests.exceptions.ConnectionError("no route")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(CoterieError, match=f"cifar-100-python.tar.gz of 'cifar100' is not in {tmp_path}/cifar100"):
        load(tmp_path, "cifar100")


@pytest.mark.full
@pytest.mark.data
def test_real_files(real_file: Callable[[str], Path]) -> None:
    examples = load(real_file("cifar10/cifar-10-python.tar.xz"))
    assert examples.inputs.shape == (60_000, 3, 32, 32)
    assert examples.boundary == 50_000
    assert np.bincount(examples.labels[:50_000]).tolist() == [5000] * 10
    assert np.bincount(examples.labels[:10_000]).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    means = [float(examples.inputs[:50_000, c].float().mean()) / 255 for c in range(3)]
    assert means == pytest.approx([0.49140, 0.48216, 0.44653], abs=2e-5)
    # the first picture is a frog, whose first pixel is (59, 62, 63)
    assert int(examples.targets[0]) == 6
    assert examples.inputs[0, :, 0, 0].tolist() == [59, 62, 63]
