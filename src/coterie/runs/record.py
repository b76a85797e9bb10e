"""Which runs are over, so that a resumed experiment knows where to go on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.runs.atomic import write_json
from coterie.runs.directory import RunDirectory

Key = tuple[str, str, int]


@dataclass
class Record:
    """Finished runs and the data they saw; kept beside the checkpoints.

    Attributes
    ----------
    path : Path
        ``checkpoints/progress.json``.
    finished : list of (algorithm, variant, seed)
        Runs whose history and models are complete.
    sources : dict
        By seed, where the federation's data came from: a resumed run must see the same.
    recipe : dict
        The part of the configuration that results depend on: a resumed run must have the same.
    methods : dict
        Of each system that has begun, its options and its training: a resumed run must have the same.
    diverged : list of str
        Runs that did not reach their last round, and why.
    """

    path: Path
    finished: list[Key] = field(default_factory=list)
    sources: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunDirectory) -> Record:
        """The record of a run directory; an empty one where none was written yet.

        Raises
        ------
        CoterieError
            The file is damaged.
        """
        path = run.checkpoints / "progress.json"
        if not path.exists():
            return cls(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            finished = [(str(name), str(variant), int(seed)) for name, variant, seed in content["finished"]]
            sources = {str(seed): dict(source) for seed, source in content["sources"].items()}
            recipe, diverged = dict(content.get("recipe", {})), [str(text) for text in content.get("diverged", [])]
            methods = {str(name): dict(told) for name, told in content.get("methods", {}).items()}
            return cls(path, finished, sources, recipe, diverged, methods)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CoterieError(
                f"{path} is damaged: delete it to run everything in {run.path} again from the checkpoints."
            ) from error

    def finish(self, key: Key) -> None:
        """Note that a run is over."""
        self.finished.append(key)
        self.write()

    def check_source(self, seed: int, source: Mapping[str, Any]) -> None:
        """Note the data of a seed, or compare them with what an earlier part of the experiment saw.

        Raises
        ------
        CoterieError
            The data are not the same.
        """
        plain = json.loads(json.dumps(source))
        known = self.sources.setdefault(str(seed), plain)
        if known != plain:
            changed = [key for key in sorted({*known, *plain}) if known.get(key) != plain.get(key)]
            before, now = known.get("files", {}), plain.get("files", {})
            if files := sorted(path for path in {*before, *now} if before.get(path) != now.get(path)):
                raise CoterieError(
                    f"{files[0]} is not as it was when this run began: put the file back, or start a new run."
                )
            raise CoterieError(
                f"the data for seed {seed} are not those this run began with ({', '.join(changed)} differ): "
                "give the same --data-dir, or start a new run."
            )
        self.write()

    def check_recipe(self, recipe: Mapping[str, Any]) -> None:
        """Note what the results depend on, or compare it with what an earlier part of the experiment ran with.

        Raises
        ------
        CoterieError
            The configuration has been changed meanwhile; the message names the keys.
        """
        plain = json.loads(json.dumps(recipe))
        before = {**plain, **self.recipe} if self.recipe else plain  # an earlier version may not have had every key
        if before != plain:
            raise self._changed(key for key in sorted(before) if before[key] != plain.get(key))
        self.recipe = plain
        self.write()

    def note_method(self, system: tuple[str, str], told: Mapping[str, Any]) -> None:
        """Note the options and the training of a system that begins."""
        self.methods[_name(system)] = json.loads(json.dumps(told))
        self.write()

    def check_methods(self, told: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        """Compare the options and the training of all systems with those of the systems that have begun.

        Others may be added, and those that have begun left out.

        Raises
        ------
        CoterieError
            The configuration has been changed meanwhile; the message names the keys.
        """
        changed = list[str]()
        for system, now in told.items():
            plain, name = json.loads(json.dumps(now)), _name(system)
            before = {**plain, **self.methods.get(name, {})}  # an earlier version may not have had every option
            changed += [f"{key} of {name}" for key in before if before[key] != plain.get(key)]
        if changed:
            raise self._changed(changed)

    def _changed(self, keys: Iterable[str]) -> CoterieError:
        return CoterieError(
            f"{self.path.parent.parent / 'config.yaml'} changed after the run had begun ({', '.join(keys)}), "
            "and results of both would be mixed: change it back, or start a new run."
        )

    def write(self) -> None:
        """Save the record in one step."""
        content: dict[str, Any] = {"finished": [list(key) for key in self.finished], "sources": self.sources}
        content |= {"recipe": self.recipe, "methods": self.methods, "diverged": self.diverged}
        write_json(self.path, content)


def _name(system: tuple[str, str]) -> str:
    return " ".join(system).strip()
