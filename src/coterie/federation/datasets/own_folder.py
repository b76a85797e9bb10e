"""A user's own pictures: a folder a client, and in it a folder a class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.arrays import Arrays, examples_of_clients
from coterie.federation.datasets.files import contents
from coterie.federation.datasets.images import PICTURES, read_images
from coterie.federation.datasets.registry import Options, register_source
from coterie.federation.examples import Examples
from coterie.federation.places import located
from coterie.federation.sides import folders_of_parts


class FolderSource(Options):
    """Options of the source ``folder``."""

    own = True

    path: str = Field(
        description="folder with <client>/<class>/<picture>, or with train, test and perhaps validation of such folders"
    )
    size: int = Field(ge=1, le=4096, description="side that the pictures are brought to, in pixels")
    grey: bool = Field(False, description="one channel instead of three")


@register_source(
    "folder", "your own pictures, a folder a client and in it one a class; needs Pillow",
    "<path>/<client>/<class>/<picture>", options=FolderSource,
)  # fmt: skip
def folder(data_dir: Path | None, options: FolderSource) -> Examples:
    """Pictures ``(N, channels, size, size)`` uint8; classes in the order of their folders' names.

    Natural groups: ``client``. Where the folder has ``train`` and ``test``, they are the official split, together with
    ``validation`` where that is there; other words for these, such as ``val``, will do.

    Raises:
        CoterieError: a folder without folders or pictures, one beside those of a split, a split without training or
            test, or a damaged picture.
    """
    root = located(options.path, data_dir)
    parts = folders_of_parts(root)
    official = {"train", "test"} <= set(parts)
    if official and (others := [path for path in _visible(root) if path not in parts.values()]):
        raise CoterieError(
            f"{others[0]} is beside the folders of an official split, and no part of it: move it away, or call it "
            "validation."
        )
    if parts and not official and not set(_visible(root)) - set(parts.values()):  # nobody calls clients so
        missing = "train" if "train" not in parts else "test"
        raise CoterieError(
            f"{root} holds {' and '.join(path.name for path in parts.values())}, which is how parts of a split are "
            f"called, but none for {missing}: add it, or put the folders of the clients directly there, and the split "
            "is drawn; if these are clients, rename them."
        )
    pictures = {part: _pictures(at) for part, at in (parts if official else {"all": root}).items()}
    classes = sorted({name for clients in pictures.values() for of in clients.values() for name in of})
    if len(classes) < 2:
        raise CoterieError(f"{root} holds the single class {classes[0]!r}, so there is nothing to predict.")
    found: dict[str, dict[str, Arrays]] = {}
    for part, clients in pictures.items():
        for client, of_class in clients.items():
            paths = [path for files in of_class.values() for path in files]
            labels = [classes.index(name) for name, files in of_class.items() for _ in files]
            pixels = read_images(paths, (options.size, options.size), "L" if options.grey else "RGB", resize=True)
            found.setdefault(client, {})[part] = Arrays(torch.from_numpy(pixels), torch.tensor(labels))
    examples = examples_of_clients("folder", dict(sorted(found.items())), len(classes))
    return replace(examples, facts={"class_names": classes})


def _pictures(root: Path) -> dict[str, dict[str, list[Path]]]:
    """Paths by client and class."""
    found: dict[str, dict[str, list[Path]]] = {}
    for client in _folders(root, "a folder for each client"):
        for of_class in _folders(client, "a folder for each class"):
            files = sorted(path for path in of_class.iterdir() if path.suffix.lower() in PICTURES)
            if not files:
                raise CoterieError(f"{of_class} holds no picture, but {contents(of_class)}: remove it, or add some.")
            found.setdefault(client.name, {})[of_class.name] = files
    return found


def _folders(root: Path, expected: str) -> list[Path]:
    folders = _visible(root) if root.is_dir() else []
    if not folders:
        raise CoterieError(f"{root} should hold {expected}, but {contents(root)}.")
    return folders


def _visible(root: Path) -> list[Path]:
    """Its folders, without those that programs hide there."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
