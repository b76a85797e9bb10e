"""Experiments that run by name: the quickstart and those of the papers, one YAML file each."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from coterie.errors import CoterieError


@dataclass(frozen=True)
class Preset:
    """A named experiment of the package."""

    name: str
    description: str
    text: str


def available_presets() -> list[Preset]:
    """All presets, the quickstart first, then by name."""
    found = [_preset(name, file) for name, file in _walk(files(__name__), "")]
    return sorted(found, key=lambda preset: (preset.name != "quickstart", preset.name))


def find_preset(name: str) -> Preset:
    """The preset called ``name``.

    Raises
    ------
    CoterieError
        There is none; the message names the nearest one.
    """
    presets = {preset.name: preset for preset in available_presets()}
    if name in presets:
        return presets[name]
    # A paper's prefix is easily forgotten: compare the last part of the name too.
    near = difflib.get_close_matches(name, presets, n=1)
    near = near or [full for full in presets if full.rpartition("/")[2] == name.rpartition("/")[2]]
    hint = f"did you mean {near[0]}?" if near else f"presets are {', '.join(presets)}."
    raise CoterieError(f"there is no preset {name}: {hint}")


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _walk(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".yaml"):
            found.append((prefix + item.name.removesuffix(".yaml"), item))
    return found


def _preset(name: str, file: Traversable) -> Preset:
    text = file.read_text(encoding="utf-8")
    first = text.split("\n", 1)[0]
    return Preset(name, first.removeprefix("#").strip() if first.startswith("#") else "", text)
