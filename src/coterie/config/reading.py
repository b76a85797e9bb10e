"""From a file, a preset or a mapping, and dotted overrides, to a validated configuration."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coterie.config.explain import describe, explain
from coterie.config.schema import Config
from coterie.errors import CoterieError
from coterie.presets import find_preset
from coterie.yamltext import read_yaml


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Read and validate one experiment.

    Parameters
    ----------
    source : str | Path | Mapping
        Path of a YAML file, name of a preset (with ``:fast`` for its small size), or the same tree as a mapping. A
        file wins over a preset.
    overrides : sequence of str
        ``key=value`` with dotted keys and YAML values, applied in order: ``training.lr=0.01``,
        ``algorithms=[local, fedora]``, ``algorithms.fedora.alpha=4`` (an entry by name or by position).

    Raises
    ------
    CoterieError
        The file cannot be read, or a key or a value is wrong; the message names it and the nearest valid one.
    """
    if isinstance(source, Mapping):
        return parse_config(source, overrides)
    path = Path(source)
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CoterieError(f"{path}: cannot be read as text ({error}).") from error
        return parse_config(read_yaml(text, str(path)), overrides, where=str(path), name=path.stem)
    if path.suffix in {".yaml", ".yml"} or isinstance(source, Path):
        raise CoterieError(f"there is no configuration file {path}{_nearest(path) or '.'}")
    if path.is_dir():
        raise CoterieError(f"{path} is a directory: give a YAML file, or continue a run with: coterie resume {path}")
    if path.suffix and (hint := _nearest(path)):
        raise CoterieError(f"there is neither a file nor a preset {source}{hint}")
    return parse_config(read_yaml(find_preset(source).text, f"preset {source}"), overrides, where=f"preset {source}")


def _nearest(path: Path) -> str:
    """The end of a sentence about a file that there is not: the experiment of nearly that name; empty without one."""
    names = [file.name for ending in ("*.yaml", "*.yml") for file in path.parent.glob(ending)]
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f": did you mean {path.with_name(near[0])}?" if near else ""


def parse_config(
    tree: Any, overrides: Sequence[str] = (), *, where: str = "the configuration", name: str | None = None
) -> Config:
    """Validate a tree of plain data.

    Parameters
    ----------
    tree : Any
        What stood in the file; anything but a mapping is refused.
    overrides : sequence of str
        As in `load_config`.
    where : str
        How messages call the source.
    name : str, optional
        Name of the experiment where the tree states none.

    Raises
    ------
    CoterieError
        A key or a value is wrong.
    """
    if not isinstance(tree, Mapping):
        raise CoterieError(f"{where} must hold keys and values such as 'rounds: 100', not {describe(tree)}.")
    data: dict[str, Any] = copy.deepcopy(dict(tree))
    if name is not None and "name" not in data:
        data["name"] = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "experiment"
    changed = {_override(data, text): text for text in overrides}
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        key, sentence = explain(error, data, Config)
        plain = re.sub(r"\[(\d+)\]", r".\1", key)
        given = [
            text for path, text in changed.items() if f"{plain}.".startswith(f"{path}.") or path.startswith(f"{plain}.")
        ]
        source = f"-s {given[-1]}" if given else where
        end = "" if sentence.endswith("?") else "."
        raise CoterieError(f"{source}: {sentence}{end}") from error


def _override(data: dict[str, Any], text: str) -> str:
    """Apply one ``key=value`` in place and return its dotted key with list positions as numbers."""
    key, equals, value_text = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise CoterieError(f"-s {text}: give key=value, for example -s training.lr=0.01.")
    value = read_yaml(value_text, f"-s {text}")
    here: Any = data
    taken: list[str] = []
    for part in parts[:-1]:
        here, step = _enter(here, part, text)
        taken.append(step)
    if isinstance(here, list):
        index = _position(here, parts[-1], text)
        here[index] = value
        return ".".join([*taken, str(index)])
    here[parts[-1]] = value
    return ".".join([*taken, parts[-1]])


def _enter(here: Any, part: str, text: str) -> tuple[Any, str]:
    """Go one level down, creating a section that is not there; a name standing alone becomes a section."""
    key: Any = _position(here, part, text) if isinstance(here, list) else part
    inner = here[key] if isinstance(here, list) else here.get(key)
    if inner is None:
        inner = {}
    elif isinstance(inner, str):
        inner = {"name": inner} if isinstance(here, list) or part == "model" else {"rule": inner}
    elif not isinstance(inner, dict | list):
        raise CoterieError(f"-s {text}: {part} is {describe(inner)} and has no keys below it.")
    here[key] = inner
    return inner, str(key)


def _position(items: list[Any], part: str, text: str) -> int:
    """The position of a list item that is called by number or by name."""
    names = [item.get("name") if isinstance(item, dict) else item for item in items]
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    if names.count(part) == 1:
        return names.index(part)
    if part in names:
        raise CoterieError(f"-s {text}: {part} is listed {names.count(part)} times; use its position, from 0.")
    raise CoterieError(f"-s {text}: there is no entry {part}; the list holds {', '.join(map(str, names))}.")
