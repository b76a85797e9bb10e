"""``schemas/seed<k>.json``: how the columns of a table became inputs, one schema for all clients or one for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.federation.schema import Schema
from coterie.runs.atomic import write_json
from coterie.runs.directory import make_folder


@dataclass(frozen=True)
class Schemas:
    """The schema of all clients, or those of single ones by name."""

    shared: Schema | None = None
    own: Mapping[str, Schema] = field(default_factory=dict)

    def of(self, client: str) -> Schema | None:
        """The client's schema, if there is one."""
        return self.own.get(client, self.shared)

    @property
    def tree(self) -> dict[str, Any]:
        """What the file holds; empty where there is no schema."""
        tree: dict[str, Any] = {} if self.shared is None else {"schema": self.shared.as_dict()}
        if self.own:
            tree["clients"] = {name: schema.as_dict() for name, schema in self.own.items()}
        return tree

    def write(self, folder: Path, seed: int) -> None:
        """Write ``schemas/seed<k>.json`` into a folder; raises CoterieError when that is impossible."""
        write_json(make_folder(folder / "schemas") / f"seed{seed}.json", self.tree)

    @classmethod
    def read(cls, folder: Path, seed: int) -> Schemas:
        """Those of a run directory; none at all where its data are no table.

        Raises
        ------
        CoterieError
            The file is damaged.
        """
        path = folder / "schemas" / f"seed{seed}.json"
        if not path.is_file():
            return cls()
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            if not tree.keys() <= {"schema", "clients"}:
                raise ValueError("unknown keys")
            shared = Schema.model_validate(tree["schema"]) if "schema" in tree else None
            return cls(shared, {name: Schema.model_validate(own) for name, own in tree.get("clients", {}).items()})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CoterieError(f"{path} is damaged ({type(error).__name__}): run the experiment again.") from error
