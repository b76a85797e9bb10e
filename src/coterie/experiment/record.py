"""Which runs are over, so that a resumed experiment knows where to go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.runs import RunDirectory
from coterie.runs.atomic import write_json

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
    """

    path: Path
    finished: list[Key] = field(default_factory=list)
    sources: dict[str, Any] = field(default_factory=dict)

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
            return cls(path, finished, dict(content["sources"]))
        except (ValueError, KeyError, TypeError) as error:
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
            raise CoterieError(
                f"the data for seed {seed} are not those this run began with ({', '.join(changed)} differ): "
                "give the same --data-dir, or start a new run."
            )
        self.write()

    def write(self) -> None:
        """Save the record in one step."""
        write_json(self.path, {"finished": [list(key) for key in self.finished], "sources": self.sources})
