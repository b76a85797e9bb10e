"""A user's own arrays, one archive a client, as PFLlib lays them out: ``train/0.npz`` and ``test/0.npz``."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.arrays import Arrays, as_arrays, examples_of_clients
from coterie.federation.datasets.files import contents
from coterie.federation.datasets.pickles import unpickle
from coterie.federation.datasets.registry import Options, register_source
from coterie.federation.examples import Examples
from coterie.federation.places import located, sha256_of
from coterie.federation.sides import folders_of_parts


class NpzSource(Options):
    """Options of the source ``npz``."""

    own = True

    path: str = Field(description="folder with train/0.npz, test/0.npz, ..., or with one archive a client")
    classes: int | None = Field(None, ge=2, description="number of classes; left out, one more than the largest label")


@register_source(
    "npz", "your own arrays, one archive a client, as PFLlib writes them", "<path>/train/0.npz, <path>/test/0.npz, ...",
    options=NpzSource,
)  # fmt: skip
def npz(data_dir: Path | None, options: NpzSource) -> Examples:
    """Inputs and targets of all archives. Natural groups: ``client``, the archive's name without its ending.

    Raises:
        CoterieError: a client has an archive in one of the folders only, or an archive is damaged or asks for code.
    """
    folder = located(options.path, data_dir)
    folders = folders_of_parts(folder)
    official = "train" in folders
    folders = {"train": folder / "train", "test": folder / "test", **folders} if official else {"all": folder}
    parts = {part: _archives(at) for part, at in folders.items()}
    names = sorted(set().union(*parts.values()), key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    for part, paths in parts.items():
        if lacking := [name for name in names if name not in paths]:
            raise CoterieError(
                f"{folders[part]} has no {lacking[0]}.npz, though another folder has: each client needs it in all."
            )
    clients = {name: {part: read_client(paths[name]) for part, paths in parts.items()} for name in names}
    found = examples_of_clients("npz", clients, options.classes)
    return found.of_files({str(path): sha256_of(path) for paths in parts.values() for path in paths.values()})


def read_client(path: Path) -> Arrays:
    """The arrays ``x`` and ``y`` of an archive, or those in the dictionary ``data``.

    A dictionary in an archive is a pickle, which may name any function to be called as it is read: it is read by an
    unpickler that admits arrays, numbers, text, lists and dictionaries only.

    Raises:
        CoterieError: the archive is damaged, holds something else, or asks for code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            held = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
        content: Any = _array(held["data"]) if "data" in held else {key: _array(held[key]) for key in held}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise CoterieError(
            f"{path} is damaged, or no archive of arrays and plain data ({error}): write it again."
        ) from error
    if isinstance(content, np.ndarray) and content.ndim == 0:
        content = content.item()
    if not isinstance(content, Mapping) or not {"x", "y"} <= set(content):
        keys = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise CoterieError(f"{path} holds {keys or 'nothing'} where the inputs x and the targets y are expected.")
    return as_arrays(content["x"], content["y"], str(path))


def _array(member: bytes) -> Any:
    """One array of an archive; one of objects by way of the careful unpickler."""
    stream = io.BytesIO(member)
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    _, _, dtype = read_header(stream)
    if dtype.hasobject:
        return unpickle(stream.read())
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _archives(folder: Path) -> dict[str, Path]:
    """The archives of a folder by client."""
    paths: dict[str, Path] = {}
    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() == ".npz") if folder.is_dir() else []:
        if (same := paths.setdefault(path.stem, path)) is not path:
            raise CoterieError(f"{same} and {path} would be one client, {path.stem!r}: rename or remove one.")
    if not paths:
        raise CoterieError(f"federation.path: {folder} should hold an archive a client, but {contents(folder)}.")
    return paths
