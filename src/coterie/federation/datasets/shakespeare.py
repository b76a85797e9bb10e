"""Plays: which character comes next in what a role says; every speaking role is a client."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import numpy as np
import torch
from pydantic import Field, model_validator

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.registry import Options, register_source
from coterie.federation.examples import Examples

FILE = "input.txt"
SPEECH = re.compile(r"([^\n:]+):\n(.+)", re.DOTALL)


class Shakespeare(Options):
    """Options of the source ``shakespeare``."""

    steps: int = Field(80, ge=1, description="characters of a window, from which the next is predicted")
    stride: int = Field(10, ge=1, description="characters from one window to the next; LEAF has 1")
    parts: int = Field(5, ge=2, description="stretches of a role's text, each of which goes to one split as a whole")
    min_characters: int = Field(2000, ge=1, description="roles that say less are left out")
    roles: int | None = Field(None, ge=1, description="only so many roles, those that say most; left out: all")

    @model_validator(mode="after")
    def _a_window_in_each_part(self) -> Shakespeare:
        least = self.parts * (self.steps + 1)
        if self.min_characters < least:
            raise ValueError(
                f"{self.parts} parts with a window of {self.steps} characters each need min_characters of at least "
                f"{least}"
            )
        return self


@register_source(
    "shakespeare",
    "the next character after 80 in what 100 roles of Shakespeare's plays say, 65 classes",
    "shakespeare/input.txt or tinyshakespeare/input.txt (or .gz)",
    options=Shakespeare,
)
def shakespeare(data_dir: Path | None, options: Shakespeare) -> Examples:
    """Codes of characters ``(N, steps)`` uint8 and the code of the next one ``(N,)``. Natural groups: ``role``.

    A role's speeches are joined in the order of the file, by line ends, and cut into equal stretches: windows overlap
    each other but not the stretches, so no character is in two splits. The first stretches are for training and the
    last are for the test. Codes count the characters of the whole file in their order. Roles of one name in several
    plays, such as First Citizen, are one.

    Raises:
        CoterieError: the file is missing or damaged, has no speeches or more than 256 characters, or every role says
            less than ``min_characters``.
    """
    places = [f"{folder}/{FILE}{ending}" for folder in ("shakespeare", "tinyshakespeare") for ending in ("", ".gz")]
    path = find(data_dir, "shakespeare", places, f"the text {FILE} (or {FILE}.gz)")
    text = _read(path)
    alphabet = {character: code for code, character in enumerate(sorted(set(text)))}
    if len(alphabet) > 256:
        raise CoterieError(f"{path} has {len(alphabet)} different characters, more than 256. Give plain English text.")
    windows, following, roles, blocks, order = [], [], [], [], []
    for role, said in _roles(text, path, options).items():
        codes = np.array([alphabet[character] for character in said], dtype=np.uint8)
        for part, stretch in enumerate(np.array_split(codes, options.parts)):
            seen = np.lib.stride_tricks.sliding_window_view(stretch, options.steps + 1)[:: options.stride]
            windows.append(seen[:, :-1])
            following.append(seen[:, -1])
            roles += [role] * len(seen)
            blocks += [f"{role}, part {part + 1}"] * len(seen)
            order += [part] * len(seen)
    return Examples(
        "shakespeare",
        torch.from_numpy(np.concatenate(windows)),
        torch.from_numpy(np.concatenate(following).astype(np.int64)),
        classes=len(alphabet),
        groups={"role": roles},
        blocks=blocks,
        order=order,
    )


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8").replace("\r\n", "\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise CoterieError(f"{path} is truncated, damaged or no text ({error}). Download or copy it again.") from error


def _roles(text: str, path: Path, options: Shakespeare) -> dict[str, str]:
    """What each role says, in the order of the alphabet."""
    speeches: dict[str, list[str]] = {}
    for paragraph in text.split("\n\n"):
        if speech := SPEECH.fullmatch(paragraph.strip("\n")):
            speeches.setdefault(speech[1].strip().lower().replace(" ", "-"), []).append(speech[2])
    said = {role: "\n".join(parts) for role, parts in speeches.items()}
    if not said:
        raise CoterieError(f"{path} has no speeches, such as a line GREMIO: with text below it. Replace the file.")
    most = sorted(said, key=lambda role: (-len(said[role]), role))[: options.roles]
    chosen = [role for role in most if len(said[role]) >= options.min_characters]
    if not chosen:
        raise CoterieError(
            f"No role of {path} says {options.min_characters:,} characters (federation.min_characters); {most[0]} says "
            f"most, {len(said[most[0]]):,}: ask for fewer."
        )
    return {role: said[role] for role in sorted(chosen)}
