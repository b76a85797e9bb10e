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
from coterie.runs.schemas import Schemas

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
    target : str or list of str, optional
        The column, or columns, that are predicted.
    target_mean, target_std : tuple of float
        Of a regression, the network's outputs are ``(value - mean) / std``; empty where they are the values.
    codes : int, optional
        Inputs are codes 0 ... ``codes - 1``, such as those of characters; None where they are bytes or numbers.
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
    target: str | list[str] | None
    client: str
    system: str
    label: str
    seed: int
    round: int | None
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()
    codes: int | None = None

    @classmethod
    def of(cls, chosen: Chosen, schema: Schema | None, *, logits: bool) -> Preprocessing:
        """What a stored model and the schema of its table say."""
        facts = chosen.facts
        inputs, classification = facts["inputs"], facts["task"] == "classification"
        features = None if schema is None or schema.features is None else tuple(schema.features)
        target = None if schema is None else schema.target
        count = int(facts["classes"])
        if not classification:
            labels = _target_names(target, count)
        else:
            named = facts.get("labels") or range(count)
            labels = tuple(map(str, named)) if schema is None else tuple(schema.label_names)
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
            target_mean=tuple(facts.get("targets", {}).get("mean", ())),
            target_std=tuple(facts.get("targets", {}).get("std", ())),
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
            lists |= {key: tuple(content.pop(key, ())) for key in ("target_mean", "target_std")}
            known = None if features is None else tuple(Feature.model_validate(feature) for feature in features)
            return cls(features=known, **lists, **content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
            raise CoterieError(f"{path} is missing or damaged: export the model again.") from error


def _target_names(target: Any, count: int) -> tuple[str, ...]:
    """The targets of a regression by name, where the table has names for all of them."""
    names = tuple(target) if isinstance(target, list) else (target,)
    if len(names) == count and all(isinstance(name, str) for name in names):
        return names
    return ("value",) if count == 1 else tuple(f"value {i}" for i in range(count))


def _stored(chosen: Chosen) -> Schema | None:
    """The schema in the model's file."""
    own = chosen.facts["schema"]
    try:
        return None if own is None else Schema.model_validate(own)
    except ValidationError as error:
        raise CoterieError(
            f"The model of {chosen.client} by {chosen.label} in {chosen.place.path} is damaged (its schema is none); "
            "run the experiment again."
        ) from error


def schema_of(chosen: Chosen) -> Schema | None:
    """The schema of the client's table; None where its data are no table, or the run does not say.

    A real site has it in the model's file. Newcomers have theirs beside their models, members in the run directory.

    Raises
    ------
    CoterieError
        A file is damaged, or does not fit the model.
    """
    if "schema" in chosen.facts:
        return _stored(chosen)
    place = chosen.place
    folders = [place.path, place.path.parent, *([] if place.run is None else [place.run.path])]
    found = (Schemas.read(folder, chosen.seed).of(chosen.client) for folder in folders)
    schema = next((schema for schema in found if schema is not None), None)
    inputs = chosen.facts["inputs"]["shape"]
    if schema is not None and schema.features is not None and list(schema.input_shape) != inputs:
        raise CoterieError(
            f"schemas/seed{chosen.seed}.json of {place.path} describes {schema.inputs} inputs, but the model of "
            f"{chosen.client} takes {inputs}: they are of different runs."
        )
    return schema
