"""Reading the data of one site, before they are checked, encoded and split."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from coterie.deploy.sections import FolderData, NpzData, PythonData, SourceData, SplitData, TableData
from coterie.deploy.sitefile import SiteFile
from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation
from coterie.federation.arrays import Arrays, as_arrays, of_dataset
from coterie.federation.called import call
from coterie.federation.datasets.images import PICTURES, read_images
from coterie.federation.folds import Fold
from coterie.federation.frames import read_frame
from coterie.federation.schema import Schema, plain

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = -1
"""The class of a target that is none of the classes."""


@dataclass(frozen=True, eq=False)
class Found:
    """The data of a site as they are: tables, arrays, or a federation of one client.

    Tables and arrays go by part: ``all``, which is split later, and ``validation`` or ``test`` with files of their own.
    """

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, Arrays] = field(default_factory=dict)
    federation: Federation | None = None


def read_data(site: SiteFile, *, seed: int, schema: Schema | None, fold: Fold | None = None) -> Found:
    """Read what the section ``data:`` names.

    Parameters
    ----------
    site : SiteFile
        The site.
    seed : int
        Seed of the run; sources of Coterie and functions are given it.
    schema : Schema, optional
        Says the size and the classes of pictures.
    fold : Fold, optional
        Sources of Coterie are divided by it.

    Raises
    ------
    CoterieError
        Something is missing or cannot be read; the message names it.
    """
    data = site.data
    if isinstance(data, SourceData):
        return Found(federation=_client_of_source(site, data, seed, fold))
    if isinstance(data, PythonData):
        return _called(site, data, seed)
    if isinstance(data, TableData):
        return Found(tables={part: read_frame(path) for part, path in _files(data, data.table).items()})
    if isinstance(data, NpzData):
        return Found(arrays={part: _arrays(path, data) for part, path in _files(data, data.npz).items()})
    assert isinstance(data, FolderData)
    return Found(arrays={part: _pictures(path, data, schema) for part, path in _files(data, data.folder).items()})


def _files(data: SplitData, everything: Path) -> dict[str, Path]:
    """The files by part."""
    parts = {"all": everything, "validation": data.validation, "test": data.test}
    return {part: path for part, path in parts.items() if isinstance(path, Path)}


def _client_of_source(site: SiteFile, data: SourceData, seed: int, fold: Fold | None) -> Federation:
    """One client of the federation that the simulator builds, under the site's name."""
    section = data.federation if fold is None else data.federation.model_copy(update={"fold": fold})
    federation = build_federation(section, seed=seed, data_dir=data.data_dir)
    wanted = data.client or site.client
    if wanted not in federation.names:
        few = ", ".join(federation.names[:8]) + (", ..." if federation.k > 8 else "")
        raise CoterieError(f"{site.path}: data.client: there is no client {wanted}: the clients are {few}.")
    return replace(federation.select([federation.names.index(wanted)]), names=(site.client,))


def _arrays(path: Path, data: NpzData) -> Arrays:
    if not path.is_file():
        raise CoterieError(f"there is no archive {path}.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            for key in (data.inputs, data.targets):
                if key not in archive.files:
                    raise CoterieError(f"{path} holds no array {key!r}, only {', '.join(archive.files) or 'nothing'}.")
            inputs, targets = np.asarray(archive[data.inputs]), np.asarray(archive[data.targets])
    # np.load takes what is no archive for a single array or a pickle
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise CoterieError(f"{path} is damaged or no archive of plain arrays: pickles are not read.") from error
    return as_arrays(inputs, targets, str(path))


def _pictures(folder: Path, data: FolderData, schema: Schema | None) -> Arrays:
    if not folder.is_dir():
        raise CoterieError(f"there is no folder {folder}.")
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if not found:
        raise CoterieError(f"{folder} holds no folders: put the pictures of each class into a folder of its own.")
    channels, height, width = _picture_shape(folder, data, schema)
    names = _class_names(folder, found, schema)
    paths: list[Path] = []
    targets: list[int] = []
    for name in found:
        of_class = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in PICTURES)
        if not of_class:
            continue
        if plain(name) not in names:
            raise CoterieError(
                f"{folder / name} is a folder of none of the classes {', '.join(names[:10])}"
                f"{', ...' if len(names) > 10 else ''}: rename it as its class, or move it elsewhere."
            )
        paths += of_class
        targets += [names.index(plain(name))] * len(of_class)
    if not paths:
        raise CoterieError(f"{folder} holds no pictures in its folders {', '.join(found[:4])}.")
    pixels = read_images(paths, (height, width), "L" if channels == 1 else "RGB", resize=True)
    return Arrays(torch.from_numpy(pixels), torch.tensor(targets, dtype=torch.int64), tuple(names))


def _class_names(folder: Path, found: list[str], schema: Schema | None) -> list[str]:
    """The classes in order: those of the schema or, where it has no names for them, the folders."""
    folders = [plain(name) for name in found]
    if schema is None:
        return folders
    if schema.labels is not None or set(folders) <= set(schema.label_names):
        return list(schema.label_names)
    if len(folders) != schema.classes:  # which class is missing cannot be known
        raise CoterieError(
            f"{folder} holds {len(folders)} folders for {schema.classes} classes: name the classes by labels in the "
            "schema, or make a folder for each."
        )
    return folders


def _picture_shape(folder: Path, data: FolderData, schema: Schema | None) -> tuple[int, int, int]:
    if schema is not None:
        shape = schema.input_shape
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise CoterieError(f"{folder} holds pictures, but the schema has inputs of the shape {shape}.")
        return shape[0], shape[1], shape[2]
    if data.size is None:
        raise CoterieError(f"{folder}: how large are the pictures to be? Give data.size, such as size: 32.")
    return (1 if data.grey else 3), data.size, data.size


def _called(site: SiteFile, data: PythonData, seed: int) -> Found:
    """What the function gives: a federation of one client, inputs and targets, or a torch Dataset."""
    where = f"{site.path}: data.python"

    def read(given: Any) -> Found:
        if isinstance(given, Federation):
            return Found(federation=_one_client(given, site, where))
        if isinstance(given, tuple) and len(given) == 2:
            return Found(arrays={"all": as_arrays(*given, where)})
        return Found(arrays={"all": of_dataset(given, where)})

    return call(data.python, seed, site.folder, where, read)


def _one_client(federation: Federation, site: SiteFile, where: str) -> Federation:
    if federation.k != 1:
        raise CoterieError(f"{where} gave a federation of {federation.k} clients where one is expected.")
    return replace(federation, names=(site.client,)).validate()
