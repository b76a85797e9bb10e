"""What the results of a run were computed with, so that runs can be told apart by it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.config import RECIPE, GuardConfig
from coterie.errors import CoterieError
from coterie.evaluation import System
from coterie.reports.opened import OpenedRun
from coterie.runs.guard import unguarded
from coterie.yamltext import read_yaml

Settings = dict[str, Any]
"""Values by dotted key."""

_NAMES = ("name", "variant", "label", "guard", "training")
"""Keys of an entry of ``algorithms`` that are no option of the method."""

_LATER = {"precision": "full"}
"""Keys that the configurations of earlier versions lack, with what their runs did."""


def read_config(run: OpenedRun) -> Mapping[str, Any]:
    """The tree of a run's ``config.yaml``, as it stands: it need not be valid here.

    Raises
    ------
    CoterieError
        It is missing, or no configuration.
    """
    path = run.directory.config
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CoterieError(f"{path} cannot be read ({reason}).") from error
    if not isinstance(tree, Mapping):
        raise CoterieError(f"{path} holds no keys and values.")
    return tree


def settings_of(run: OpenedRun, config: Mapping[str, Any]) -> dict[System, Settings]:
    """By system, all that its results depend on but the seed: the recipe of the run, and what its own entry states.

    An entry's ``training`` replaces keys of the run's; its options are keys such as ``algorithms.ditto.lambda``.
    """
    stated = {**_LATER, **config}
    common = flat({key: stated[key] for key in RECIPE if stated.get(key) is not None})
    own = _entries(run, config)
    found = {}
    for system in run.about.labels:
        entry = own.get(system, {})
        options = {key: value for key, value in entry.items() if key not in _NAMES}
        found[system] = common | flat({"training": entry.get("training") or {}})
        found[system] |= flat({"algorithms": {system[0]: options}})
        if unguarded(system) is not None:
            found[system] |= flat({"guard": {**GuardConfig().model_dump(), **(stated.get("guard") or {})}})
    return found


def flat(tree: Mapping[Any, Any], above: str = "") -> Settings:
    """A tree's values by dotted key; lists are values."""
    values: Settings = {}
    for key, value in tree.items():
        dotted = f"{above}{key}"
        values |= flat(value, f"{dotted}.") if isinstance(value, Mapping) else {dotted: value}
    return values


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, None where the configuration has none; an entry of a list goes by its name."""
    here: Any = config
    for part in key.split("."):
        if isinstance(here, list):
            named = {str(item.get("name") if isinstance(item, Mapping) else item): item for item in here}
            here = named.get(part)
        else:
            here = here.get(part) if isinstance(here, Mapping) else None
    return here


def check_key(key: str, configs: Iterable[Mapping[str, Any]]) -> None:
    """Raise CoterieError for a key that none of the configurations has; the message names the nearest one."""
    trees = list(configs)
    if any(value_at(tree, key) is not None for tree in trees):
        return
    known = sorted({name for tree in trees for name in flat(tree)})
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    raise CoterieError(
        f"--by {key}: no run has this key in its config.yaml"
        + (f"; did you mean {near[0]}?" if near else "; give one such as training.lr.")
    )


def text_of(value: Any) -> str:
    """A value as it is printed, and by which equal ones are known."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Dotted keys by their last part, as far as that tells them apart; ``model.name`` is ``model``."""
    last = [key.removesuffix(".name").rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def _entries(run: OpenedRun, config: Mapping[str, Any]) -> dict[System, Mapping[str, Any]]:
    """The entry of ``algorithms`` of each system, where it can be known."""
    listed = config.get("algorithms")
    entries = [
        item if isinstance(item, Mapping) else {"name": item} for item in (listed if isinstance(listed, list) else [])
    ]
    alone = run.about.reference[0]
    if all(entry.get("name") != alone for entry in entries):
        entries.append({"name": alone})  # it runs along
    entries.sort(key=lambda entry: entry.get("name") != alone)  # and always first
    trained = {system: unguarded(system) or system for system in run.about.labels}
    systems = list(dict.fromkeys(trained.values()))  # a guarded one has the entry of the one it is made of
    if len(entries) == len(systems):
        known = dict(zip(systems, entries, strict=True))
    else:  # config.yaml has other entries than the run had: a method that is listed once is known all the same
        names = [entry.get("name") for entry in entries]
        single = [entry for entry in entries if names.count(entry.get("name")) == 1]
        known = {system: entry for system in systems for entry in single if entry.get("name") == system[0]}
    return {system: known[own] for system, own in trained.items() if own in known}
