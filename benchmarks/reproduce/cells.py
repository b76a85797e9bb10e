"""A cell is one system of a table with one seed; it is known by what its result depends on."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coterie.config import RECIPE, AlgorithmEntry, Config
from coterie.errors import CoterieError
from coterie.experiment import read_config
from coterie.experiment.plan import REFERENCE, plan

HERE = Path(__file__).parent
TABLES = HERE / "tables.yaml"


@dataclass(frozen=True)
class Cell:
    """One system with one seed; ``hash`` is of all that is stated about it."""

    label: str
    entry: AlgorithmEntry
    seed: int
    hash: str


@dataclass(frozen=True)
class Table:
    """A published table: the experiment behind it, and by label what was published, in the order of ``columns``."""

    name: str
    title: str
    experiment: str
    settings: tuple[str, ...]
    columns: tuple[str, ...]
    published: dict[str, list[float]]
    config: Config

    @property
    def command(self) -> str:
        """How a reader runs the same."""
        return shlex.join(
            ["coterie", "run", self.experiment, *(part for each in self.settings for part in ("-s", each))]
        )

    @property
    def cells(self) -> list[Cell]:
        """Every system with every seed, LOCAL first."""
        recipe = stated(self.config)
        found = []
        for label, entry in systems(self.config):
            for seed in self.config.seeds:
                text = json.dumps([recipe, canonical(entry), seed], sort_keys=True)
                found.append(Cell(label, entry, seed, hashlib.sha256(text.encode()).hexdigest()[:16]))
        return found


def tables() -> dict[str, Table]:
    """All tables by name, in the order of ``tables.yaml``."""
    content = yaml.safe_load(TABLES.read_text(encoding="utf-8"))
    return {name: _table(name, section) for name, section in content.items()}


def table_named(name: str) -> Table:
    """One table.

    Raises
    ------
    CoterieError
        There is none of that name.
    """
    known = tables()
    if name not in known:
        raise CoterieError(f"There is no table {name}: choose one of {', '.join(known)}.")
    return known[name]


def _table(name: str, section: dict[str, Any]) -> Table:
    experiment, settings = str(section["experiment"]), tuple(section.get("set", ()))
    path = HERE / experiment
    config = read_config(str(path) if path.is_file() else experiment, settings)
    if path.is_file():
        experiment = f"benchmarks/reproduce/{experiment}"
    published = {
        label: [float(value) for value in (values if isinstance(values, list) else [values])]
        for label, values in section.get("published", {}).items()
    }
    return Table(name, section["title"], experiment, settings, tuple(section["columns"]), published, config)


def systems(config: Config) -> Iterator[tuple[str, AlgorithmEntry]]:
    """Labels and entries of a configuration, LOCAL first, as a run orders them."""
    entries = list(config.algorithms)
    if all(entry.name != REFERENCE for entry in entries):
        entries.append(AlgorithmEntry(name=REFERENCE))
    entries.sort(key=lambda entry: entry.name != REFERENCE)
    for system, entry in zip(plan(config).systems, entries, strict=True):
        yield system.label, entry


def canonical(entry: AlgorithmEntry) -> dict[str, Any]:
    """What an entry states about its method, whatever it is called."""
    return entry.model_dump(mode="json", exclude_none=True, exclude={"label", "guard"})


def identity(entry: AlgorithmEntry) -> str:
    """The same for entries that state the same."""
    return json.dumps(canonical(entry), sort_keys=True)


def stated(config: Config) -> dict[str, Any]:
    """What a configuration states of its recipe: a key that a later version adds changes nothing."""
    tree = config.model_dump(mode="json", exclude_unset=True)
    return {key: tree[key] for key in RECIPE if key in tree}


def recipe(config: Config) -> dict[str, Any]:
    """All of a configuration's recipe, defaults included."""
    tree = config.as_dict()
    return {key: tree.get(key) for key in RECIPE}
