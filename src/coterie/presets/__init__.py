"""Experiments that run by name: the quickstart and those of the papers, one YAML file each.

A file begins with a comment: its first line says what the experiment is, one further line what it costs. The first
YAML document is the ``full`` size, the published setting. A second one after a line ``---`` holds only the keys that
the ``fast`` size changes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import takewhile
from typing import Any

from coterie.errors import CoterieError
from coterie.yamltext import read_yaml, write_yaml

FULL, FAST = "full", "fast"

COST = re.compile(r"^# Cost on 2 cores: full (?P<full>[^;]+?)(?:; fast (?P<fast>[^;]+?))?\.$", re.MULTILINE)


@dataclass(frozen=True)
class Preset:
    """A named experiment of the package, in one of its sizes.

    Attributes
    ----------
    name : str
        Its name, without a size.
    size : str
        ``full``, the published setting, or ``fast``, a few minutes on two cores.
    description : str
        One line.
    costs : Mapping[str, str]
        Time on two cores by size; its keys are the sizes there are.
    text : str
        The experiment as a YAML file, comment included.
    """

    name: str
    size: str
    description: str
    costs: Mapping[str, str]
    text: str


def available_presets() -> list[Preset]:
    """All presets in full size, the quickstart first, then by name."""
    found = [_preset(name, file.read_text(encoding="utf-8")) for name, file in _walk(files(__name__), "")]
    return sorted(found, key=lambda preset: (preset.name != "quickstart", preset.name))


def find_preset(name: str) -> Preset:
    """The preset called ``name``: ``pgfed/cifar10``, or with a size ``pgfed/cifar10:fast``.

    Raises
    ------
    CoterieError
        There is none, or it has no such size; the message names the nearest one.
    """
    plain, colon, size = name.partition(":")
    presets = dict(sorted(_walk(files(__name__), "")))
    if plain not in presets:
        # What is proposed has the size that was asked for, where any has.
        sizes = {full: _sizes(file.read_text(encoding="utf-8")) for full, file in presets.items()}
        fitting = [full for full in presets if size in sizes[full]] or list(presets)
        # A paper's prefix is easily forgotten: compare the last part of the name too.
        near = difflib.get_close_matches(plain, fitting, n=1)
        near = near or [full for full in fitting if full.rpartition("/")[2] == plain.rpartition("/")[2]]
        if near and "/" not in plain:
            near = [full for full in fitting if full.rpartition("/")[2] == near[0].rpartition("/")[2]]
        proposed = " or ".join(f"{full}{colon}{size}" for full in near)
        hint = f"did you mean {proposed}?" if near else f"presets are {', '.join(presets)}."
        raise CoterieError(f"there is no preset {name}: {hint}")
    return _preset(plain, presets[plain].read_text(encoding="utf-8"), size if colon else FULL)


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _walk(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".yaml"):
            found.append((prefix + item.name.removesuffix(".yaml"), item))
    return found


def _parts(file: str) -> list[str]:
    """The experiment in full size and, where the file has it, what makes it the fast one."""
    return re.split(r"^---\n", file, flags=re.MULTILINE)


def _sizes(file: str) -> list[str]:
    return [FULL, FAST][: len(_parts(file))]


def _preset(name: str, file: str, size: str = FULL) -> Preset:
    full, *changes = _parts(file)
    stated = COST.search(file)
    costs = {key: (stated[key] or "") if stated else "" for key in _sizes(file)}
    if size not in costs:
        near = difflib.get_close_matches(size, costs, n=1) or [FAST]
        hint = f"did you mean {name}:{near[0]}?" if changes else f"it has one only, {name}."
        raise CoterieError(f"there is no size {size!r} of the preset {name}: {hint}")
    comment = list(takewhile(lambda line: line.startswith("#"), full.splitlines()))
    text = full if size == FULL else "\n".join([*comment, _reduced(name, full, changes[0])])
    return Preset(name, size, comment[0].removeprefix("#").strip() if comment else "", costs, text)


def _reduced(name: str, full: str, changes: str) -> str:
    """The fast size as YAML: the full one with its changes, and under a name of its own."""
    tree = merged(read_yaml(full, f"preset {name}"), read_yaml(changes, f"preset {name}:{FAST}"))
    tree["name"] = f"{tree['name']}-{FAST}"
    return write_yaml(tree)


def merged(tree: Any, changes: Any) -> Any:
    """``tree`` with ``changes``: mappings are merged key by key, everything else is replaced."""
    if not isinstance(tree, Mapping) or not isinstance(changes, Mapping):
        return changes
    return {**tree, **{key: merged(tree.get(key), value) for key, value in changes.items()}}
