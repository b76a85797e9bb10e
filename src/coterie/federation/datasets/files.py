"""Where data files lie, and how they get there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import pooch

from coterie.errors import CoterieError

ENVIRONMENT = "COTERIE_DATA"
PATIENCE = 20  # seconds to wait for a server


def data_directory(data_dir: Path | None) -> Path:
    """The data directory: the one given, else ``$COTERIE_DATA``, else a cache directory of the user."""
    if data_dir is not None:
        return Path(data_dir)
    named = os.environ.get(ENVIRONMENT)
    return Path(named) if named else Path(pooch.os_cache("coterie"))


@dataclass(frozen=True)
class Published:
    """One published file.

    Attributes:
        name: file name, as published (``.gz``).
        sha256: checksum of the published bytes; it applies to downloads, local files are checked by
            structure.
        mirrors: addresses of folders that hold the file, tried in turn.
    """

    name: str
    sha256: str
    mirrors: tuple[str, ...]


def obtain(file: Published, data_dir: Path | None, source: str, folders: Sequence[str]) -> Path:
    """Path of a published file, which is downloaded if it is not there yet.

    Args:
        file: the file; it is found with or without its ending ``.gz``.
        data_dir: the data directory, see ``data_directory``.
        source: name of the source, for messages.
        folders: where to look below the data directory; a download goes into the first.

    Raises:
        CoterieError: neither found nor to be downloaded; the message says where it was looked for.
    """
    root = data_directory(data_dir)
    for folder in folders:
        for name in (file.name, file.name.removesuffix(".gz")):
            path = root / folder / name
            if path.exists():
                return path
    reasons, new = [], not (root / folders[0]).exists()
    for mirror in file.mirrors:
        host = urlparse(mirror).hostname
        try:
            return _download(mirror + file.name, file, root / folders[0])
        except ValueError:
            reasons.append(f"{host}: wrong checksum")
        except OSError as error:  # no network, no such page, no place to write
            reasons.append(f"{host}: {type(error).__name__}")
    if new:
        with suppress(OSError):  # nothing has been saved there
            (root / folders[0]).rmdir()
    looked = " or ".join(str(root / folder) for folder in folders)
    raise CoterieError(
        f"{file.name} of {source!r} is not in {looked}, and could not be downloaded ({'; '.join(reasons)}): "
        f"put the published files into {root / folders[0]}, or name another folder by --data-dir or "
        f"{ENVIRONMENT}."
    )


def find(data_dir: Path | None, source: str, places: Sequence[str], expected: str) -> Path:
    """The first of several places that exists; for sources that are not downloaded.

    Args:
        data_dir: the data directory, see ``data_directory``.
        source: name of the source, for messages.
        places: files or folders below the data directory, the preferred one first.
        expected: what should lie there, for messages.

    Raises:
        CoterieError: none exists; the message says what was expected, what was found and what to do.
    """
    root = data_directory(data_dir)
    for place in places:
        if (root / place).exists():
            return root / place
    folder = root / source
    raise CoterieError(
        f"{source!r} needs {expected}, but {contents(folder)}: put the published files there, or name another data "
        f"directory by --data-dir or {ENVIRONMENT}."
    )


def contents(folder: Path, few: int = 4) -> str:
    """What a folder holds, in a few words: ``/data/x holds a, b and 2 more`` or ``/data/x does not exist``."""
    if not folder.exists():
        return f"{folder} does not exist"
    if not folder.is_dir():
        return f"{folder} is a file"
    names = sorted(path.name for path in folder.iterdir())
    listed = ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")
    return f"{folder} holds {listed or 'nothing'}"


def _download(url: str, file: Published, folder: Path) -> Path:
    downloader = pooch.HTTPDownloader(timeout=PATIENCE)
    return Path(
        pooch.retrieve(url, known_hash=f"sha256:{file.sha256}", fname=file.name, path=folder, downloader=downloader)
    )
