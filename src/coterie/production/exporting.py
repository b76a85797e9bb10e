"""``coterie export``: a client's model as files that need no Coterie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.production.building import check_facts, opened
from coterie.production.card import card
from coterie.production.choice import EVERYONE, Chosen, choose, known
from coterie.production.formats import FILES, FORMATS, Format, Missing, Writing
from coterie.production.preprocessing import FILE, Preprocessing
from coterie.runs import client_file
from coterie.runs.atomic import write_json, write_text
from coterie.runs.directory import make_folder

CARD = "README.md"


@dataclass(frozen=True)
class Exported:
    """What was written of one client.

    Attributes
    ----------
    client, system, seed : str, str, int
        Whose model, of which method and seed.
    directory : Path
        The folder with the files.
    files : tuple of str
        Their names.
    remarks : tuple of str
        What could not be written, and why.
    """

    client: str
    system: str
    seed: int
    directory: Path
    files: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def export(
    run: str | Path,
    client: str,
    *,
    algorithm: str | None = None,
    seed: int | None = None,
    format: str = "all",
    logits: bool = False,
    output: str | Path | None = None,
) -> list[Exported]:
    """Write a client's model, with its preprocessing inside, as files for production.

    Parameters
    ----------
    run : path
        A run directory, or a folder that ``coterie adapt`` has made.
    client : str
        The client's name, or ``all``.
    algorithm : str, optional
        A method by name, label or ``name-variant``; needed where the run has several besides LOCAL.
    seed : int, optional
        Default the run's first.
    format : str
        ``state_dict``, ``torchscript``, ``torch-export``, ``onnx``, or ``all``: each that this machine has the
        libraries for.
    logits : bool
        Classifications give logits instead of probabilities.
    output : path, optional
        The folder; with ``all`` it gets one folder a client. Default ``RUN/exports/<system>-seed<k>-<client>``.

    Returns
    -------
    list of Exported
        One a client.

    Raises
    ------
    CoterieError
        No such client, method or seed, a damaged file, logits of a regression, or a model that cannot be written in
        the format.

    Examples
    --------
    >>> coterie.export("runs/trial", client="client-00", algorithm="fedora")  # doctest: +SKIP
    """
    wanted: Sequence[Format] = FORMATS
    if format != EVERYONE:
        known(format, [*FORMATS, EVERYONE], "format")
        wanted = [name for name in FORMATS if name == format]
    chosen = choose(run, client, algorithm, seed)
    folders = [_folder(one, output, alone=len(chosen) == 1 and client != EVERYONE) for one in chosen]
    return [
        _export(one, wanted, folder, logits=logits, leave_out=format == EVERYONE)
        for one, folder in zip(chosen, folders, strict=True)
    ]


def _folder(chosen: Chosen, output: str | Path | None, *, alone: bool) -> Path:
    """Where the files go; raises CoterieError where something else lies there."""
    if output is None:
        name = f"{chosen.system}-seed{chosen.seed}-{client_file(chosen.client)}"
        return chosen.place.path / "exports" / name
    folder = Path(output) if alone else Path(output) / client_file(chosen.client)
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / FILE).is_file())):
        raise CoterieError(f"{folder} exists and is no export: choose another --output.")
    return folder


def _export(chosen: Chosen, formats: Sequence[Format], folder: Path, *, logits: bool, leave_out: bool) -> Exported:
    check_facts(chosen)
    if logits and chosen.facts["task"] != "classification":
        raise CoterieError("--logits is for classes, and this is a regression: leave it out.")
    preprocessing, module = opened(chosen, logits=logits)
    make_folder(folder)
    writing = Writing(module, examples(preprocessing), preprocessing.output)
    written, remarks = list[Format](), list[str]()
    try:  # an earlier export may be in use: it stays until the new one is whole
        with TemporaryDirectory(prefix=".export-", dir=folder) as name:  # inside, so on the same disk
            temporary = Path(name)
            for format in formats:
                try:
                    writing.write(format, temporary)
                    written.append(format)
                except Missing as error:
                    if not leave_out:
                        raise
                    remarks.append(f"{FILES[format]} was left out. {error}")
            write_json(temporary / FILE, preprocessing.as_dict())
            write_text(temporary / CARD, card(chosen, preprocessing, module, written))
            for path in sorted(temporary.iterdir()):
                os.replace(path, folder / path.name)
        for format in FORMATS:  # nothing of an earlier export stays beside the new one
            if format not in written:
                (folder / FILES[format]).unlink(missing_ok=True)
    except OSError as error:
        raise CoterieError(f"Cannot write into {folder}: {error.strerror}; choose another --output.") from error
    files = (*(FILES[format] for format in written), FILE, CARD)
    return Exported(chosen.client, chosen.system, chosen.seed, folder, files, tuple(remarks))


def examples(preprocessing: Preprocessing, count: int = 5) -> Tensor:
    """Made-up inputs ``(count, *shape)`` as the model takes them, the same every time."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, *preprocessing.shape)
    if preprocessing.features is None:
        if preprocessing.codes is not None:
            codes = torch.randint(0, preprocessing.codes, shape, generator=generator)
            return codes.to(getattr(torch, preprocessing.dtype))
        if preprocessing.dtype == "uint8":
            return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return torch.randn(shape, generator=generator, dtype=getattr(torch, preprocessing.dtype))
    table = torch.randn(shape, generator=generator, dtype=torch.float64)
    for column, feature in enumerate(preprocessing.features):
        if feature.kind == "number":
            table[:, column] = feature.mean + feature.std * table[:, column]
        else:
            table[:, column] = torch.randint(-1, len(feature.values), (count,), generator=generator).double()
        if feature.missing:
            table[column % count, column] = torch.nan
    return table
