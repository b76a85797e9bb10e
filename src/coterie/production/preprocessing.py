"""``preprocessing.json``: what an exported model takes and gives, for whoever feeds it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from coterie.errors import CoterieError
from coterie.federation.schema import Feature, Schema
from coterie.production.choice import Chosen

FILE = "preprocessing.json"
FORMAT = 1
Output = Literal["probabilities", "logits", "values"]


@dataclass(frozen=True)
class Preprocessing:
    """What goes in, what comes out, and whose model it is.

    Attributes
    ----------
    task : str
        ``classification`` or ``regression``.
    output : str
        ``probabilities``, ``logits`` or ``values``.
    labels : tuple of str
        The classes, or the targets, in the order of the outputs.
    shape, dtype : tuple of int, str
        Of one input as it is handed over; of a table one float64 a feature.
    scale : float
        Factor of stored values.
    mean, std : tuple of float
        Then ``(x - mean) / std``, one a channel; empty where nothing is normalised.
    features : tuple of Feature, optional
        The columns of a table.
    target : str, optional
        The column that is predicted.
    client, system, label, seed, round : str, str, str, int, int or None
        Whose model, of which method, run and round.
    """

    task: str
    output: Output
    labels: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    features: tuple[Feature, ...] | None
    target: str | None
    client: str
    system: str
    label: str
    seed: int
    round: int | None

    @classmethod
    def of(cls, chosen: Chosen, schema: Schema | None, *, logits: bool) -> Preprocessing:
        """What a stored model and the schema of its table say."""
        facts = chosen.facts
        inputs, classification = facts["inputs"], facts["task"] == "classification"
        features = None if schema is None or schema.features is None else tuple(schema.features)
        target = None if schema is None else schema.target
        count = int(facts["classes"])
        if not classification:
            labels = (target or "value",) if count == 1 else tuple(f"value {i}" for i in range(count))
        else:
            labels = tuple(map(str, range(count))) if schema is None else tuple(schema.label_names)
        round = facts.get("round")
        return cls(
            task=facts["task"],
            output=("logits" if logits else "probabilities") if classification else "values",
            labels=labels,
            shape=tuple(inputs["shape"]) if features is None else (len(features),),
            dtype=inputs["dtype"] if features is None else "float64",
            scale=float(inputs.get("scale", 1.0)),
            mean=tuple(inputs.get("mean", ())),
            std=tuple(inputs.get("std", ())),
            features=features,
            target=target,
            client=chosen.client,
            system=chosen.system,
            label=chosen.label,
            seed=chosen.seed,
            round=None if round is None else int(round),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        features = None if self.features is None else [feature.model_dump() for feature in self.features]
        return {"format": FORMAT, **asdict(self), "features": features}

    @classmethod
    def read(cls, folder: Path) -> Preprocessing:
        """Read the file of an export.

        Raises
        ------
        CoterieError
            It is missing, damaged or of another version.
        """
        path = folder / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise CoterieError(f"{path} was written by another version of Coterie: export the model again.")
            features = content.pop("features")
            lists: dict[str, Any] = {key: tuple(content.pop(key)) for key in ("labels", "shape", "mean", "std")}
            known = None if features is None else tuple(Feature.model_validate(feature) for feature in features)
            return cls(features=known, **lists, **content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
            raise CoterieError(f"{path} is missing or damaged: export the model again.") from error


def schema_of(chosen: Chosen) -> Schema | None:
    """The schema of the client's table, from ``schemas/seed<k>.json`` of the run; None where its data are no table.

    Raises
    ------
    CoterieError
        The file is damaged, or does not fit the model.
    """
    run = chosen.place.run
    path = None if run is None else run.path / "schemas" / f"seed{chosen.seed}.json"
    if path is None or not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = content["clients"].get(chosen.client) if "clients" in content else content["schema"]
        schema = None if own is None else Schema.model_validate(own)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CoterieError(f"{path} is damaged ({type(error).__name__}): run the experiment again.") from error
    if (
        schema is not None
        and schema.features is not None
        and list(schema.input_shape) != chosen.facts["inputs"]["shape"]
    ):
        raise CoterieError(
            f"{path} describes {schema.inputs} inputs, but the model of {chosen.client} takes "
            f"{chosen.facts['inputs']['shape']}: they are of different runs."
        )
    return schema
